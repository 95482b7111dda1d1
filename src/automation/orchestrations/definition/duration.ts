import { z } from 'zod'

const UNIT_MS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

const MAX_DURATION_MS = 366 * UNIT_MS.d

const SHORT = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/
const ISO = /^P(?=\d|T\d)(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$/

/** Syntax accepted by `parseDuration`, for messages. */
export const DURATION_SYNTAX = 'a duration such as 500ms, 30s, 1.5h, 2d or P1DT12H, from 0 to 366 days'

/**
 * Returns the milliseconds of a duration such as `1.5h` or `P1DT12H`, rounded; null if it is invalid or exceeds 366
 * days.
 */
export function parseDuration(text: string): number | null {
  const [, count, unit] = SHORT.exec(text) ?? []
  const ms = unit ? Number(count) * UNIT_MS[unit] : isoDuration(text)
  return ms !== null && ms <= MAX_DURATION_MS ? Math.round(ms) : null
}

const Instant = z.union([z.iso.datetime({ offset: true, local: true }), z.iso.date()])

/**
 * Returns the milliseconds since 1970 of an ISO 8601 date or time, in UTC if it has no offset; null if it is invalid.
 */
export function parseInstant(text: string): number | null {
  if (!Instant.safeParse(text).success) return null
  const isLocal = text.includes('T') && !/(Z|[+-]\d\d:\d\d)$/.test(text)
  return Date.parse(isLocal ? `${text}Z` : text)
}

function isoDuration(text: string): number | null {
  const found = ISO.exec(text)
  if (!found) return null
  const [days, hours, minutes, seconds] = found.slice(1).map(part => Number(part ?? 0))
  return days * UNIT_MS.d + hours * UNIT_MS.h + minutes * UNIT_MS.m + seconds * UNIT_MS.s
}
