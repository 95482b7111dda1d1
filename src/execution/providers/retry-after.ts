type Headers = Record<string, string | undefined>

/** Longest time that is taken from a vendor. Clients receive it in Retry-After. */
const MAX_MS = 30 * 86_400_000

/**
 * Returns the time after which a vendor accepts a repeat, in milliseconds: of Retry-After, of the `retryDelay` of Google,
 * else until the exhausted limits are reset. Null if the vendor said nothing.
 */
export function retryAfter(headers: Headers, body: string | null, now = Date.now()): number | null {
  const ms = statedDelay(headers, body, now)
  return ms === null ? null : Math.min(ms, MAX_MS)
}

function statedDelay(headers: Headers, body: string | null, now: number): number | null {
  const ms = Number(headers['retry-after-ms'] ?? Number.NaN)
  if (Number.isFinite(ms) && ms >= 0) return ms
  return retryAfterHeader(headers['retry-after'], now) ?? googleDelay(body) ?? resetDelay(headers, now)
}

function retryAfterHeader(value: string | undefined, now: number): number | null {
  if (value === undefined) return null
  if (/^\d+(\.\d+)?$/.test(value)) return Number(value) * 1000
  const at = Date.parse(value)
  return Number.isNaN(at) ? null : Math.max(0, at - now)
}

/** RetryInfo in the details of an error of Google. */
const RETRY_DELAY = /"retryDelay":\s{0,10}"(\d{1,10}(?:\.\d{1,9})?)s"/

function googleDelay(body: string | null): number | null {
  const seconds = body === null ? undefined : RETRY_DELAY.exec(body)?.[1]
  return seconds === undefined ? null : Number(seconds) * 1000
}

/** Headers with the rest of a limit, and with the time of its reset: of OpenRouter; of OpenAI, Azure, Groq and others; of Anthropic. */
const LIMITS = [
  ['x-ratelimit-remaining', 'x-ratelimit-reset'],
  ...['requests', 'tokens'].map(name => [`x-ratelimit-remaining-${name}`, `x-ratelimit-reset-${name}`]),
  ...['requests', 'tokens', 'input-tokens', 'output-tokens'].map(name => [
    `anthropic-ratelimit-${name}-remaining`,
    `anthropic-ratelimit-${name}-reset`,
  ]),
]

function resetDelay(headers: Headers, now: number): number | null {
  const delays = LIMITS.flatMap(([remaining, reset]) => {
    const isExhausted = headers[remaining] !== undefined && Number(headers[remaining]) === 0
    const delay = isExhausted ? durationOf(headers[reset], now) : null
    return delay === null ? [] : [delay]
  })
  return delays.length === 0 ? null : Math.max(...delays)
}

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }
const DURATION = /^(?:\d{1,10}(?:\.\d{1,9})?(?:ms|[smhd])){1,5}$/

/** Returns a duration such as `6m0s`, or the time until a date or a Unix time; null for another value. */
function durationOf(value: string | undefined, now: number): number | null {
  if (value === undefined) return null
  if (/^\d{10}$|^\d{13}$/.test(value)) return Math.max(0, Number(value.padEnd(13, '0')) - now)
  if (DURATION.test(value))
    return [...value.matchAll(/(\d{1,10}(?:\.\d{1,9})?)(ms|[smhd])/g)].reduce(
      (sum, [, n, unit]) => sum + Number(n) * UNITS[unit],
      0,
    )
  const at = Date.parse(value)
  return /^\d{4}-/.test(value) && !Number.isNaN(at) ? Math.max(0, at - now) : null
}
