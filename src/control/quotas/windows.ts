export const QUOTA_WINDOWS = ['rolling_1m', 'rolling_1h', 'rolling_24h', 'calendar_month', 'current'] as const
export type WindowName = (typeof QUOTA_WINDOWS)[number]

/** A fixed window in UTC; `resets_at` is the start of the next window, null for `current`. */
export type Window = { key: string; start: string; resets_at: string | null }

const MINUTE = 60_000
const HOUR = 60 * MINUTE
const DAY = 24 * HOUR

const rolling = { rolling_1m: [MINUTE, 16], rolling_1h: [HOUR, 13], rolling_24h: [DAY, 10] } as const

/** Returns the window that contains `now`. Keys of the same window name sort by time. */
export function windowOf(name: WindowName, now: Date): Window {
  if (name === 'calendar_month') {
    const start = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1))
    const next = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 1))
    return { key: start.toISOString().slice(0, 7), start: start.toISOString(), resets_at: next.toISOString() }
  }
  const [length, digits] = rolling[name === 'current' ? 'rolling_24h' : name]
  const start = Math.floor(now.getTime() / length) * length
  const text = new Date(start).toISOString()
  const resets_at = name === 'current' ? null : new Date(start + length).toISOString()
  return { key: `${text.slice(0, digits)}Z`, start: text, resets_at }
}

/** Returns the seconds until a window resets, at least 1, for Retry-After. */
export const retryAfter = (resetsAt: string, now: Date): number =>
  Math.max(1, Math.ceil((new Date(resetsAt).getTime() - now.getTime()) / 1000))
