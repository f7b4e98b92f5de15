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
    ["#/%E0%A4%A", "%E0%A4%A", ""],
  ])("%s", (hash, name, token) => {
    expect(read(hash)).toEqual({ name, token });
  });
});
