/** Keeps a phone's screen on while it takes part, where the browser can; the result lets it sleep again. */

export function keepAwake(): () => void {
  let lock: WakeLockSentinel | null = null;
  let wanted = true;
  const ask = async (): Promise<void> => {
    if (!wanted || document.visibilityState !== "visible" || !("wakeLock" in navigator)) return;
    // A device that is low on power says no; then it sleeps, and the session connects again when it wakes.
    lock = await navigator.wakeLock.request("screen").catch(() => null);
    if (!wanted) void lock?.release(); // the part was over before the browser had answered
  };
  const again = (): void => void ask();
  document.addEventListener("visibilitychange", again);
  void ask();
  return () => {
    wanted = false;
    document.removeEventListener("visibilitychange", again);
    void lock?.release();
  };
}
