const DAY_SECONDS = 86_400

/** Returns the starts of the days of a period that ends today, in UTC, in seconds. */
export function daysOf(count: number): number[] {
  const today = Math.floor(Date.now() / 1000 / DAY_SECONDS)
  return Array.from({ length: count }, (_, index) => (today - count + 1 + index) * DAY_SECONDS)
}
