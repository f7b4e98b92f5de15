/** The address of one's own record. */
export const RECORD = "#/record";

/**
 * What the address says: /#/NAME, /#/NAME?token=TOKEN, or the link of an invitation, /#federation=NAME&token=TOKEN&key=KEY.
 * Behind the # nothing is sent to a server or left in its logs.
 */
export function read(hash: string): { name: string; token: string; key: string } {
  const text = hash.replace(/^#\/?/, "");
  if (text === "main") return { name: "", token: "", key: "" };
  const [path = "", query = ""] = text.includes("?") || !text.includes("=") ? text.split("?") : ["", text];
  const given = new URLSearchParams(query);
  return { name: decoded(path) || (given.get("federation") ?? ""), token: given.get("token") ?? "", key: given.get("key") ?? "" };
}

function decoded(path: string): string {
  try {
    return decodeURIComponent(path);
  } catch {
    return path;
  }
}
