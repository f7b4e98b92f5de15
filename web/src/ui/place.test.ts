import { describe, expect, it } from "vitest";
import { read } from "./place.ts";

describe("the address", () => {
  it.each([
    ["", "", ""],
    ["#/", "", ""],
    ["#main", "", ""],
    ["#/webfed-digits", "webfed-digits", ""],
    ["#/webfed-digits?token=ab%2Fc", "webfed-digits", "ab/c"],
    ["#federation=webfed-digits&token=abc", "webfed-digits", "abc"],
    ["#federation=webfed-digits&token=abc&key=00ff", "webfed-digits", "abc", "00ff"],
    ["#/%E0%A4%A", "%E0%A4%A", ""],
  ])("%s", (hash, name, token, key = "") => {
    expect(read(hash)).toEqual({ name, token, key });
  });
});
