import { LRUCache } from 'lru-cache'
import { raise } from '../../core/api/errors.ts'

/**
 * Cron expressions of five fields, and when they occur next. Strict: a library that takes seconds, `@daily`, `L` or `W` would
 * let callers write what other parts of the contract do not know.
 */
export type Cron = {
  minutes: readonly number[]
  hours: readonly number[]
  days: ReadonlySet<number>
  months: ReadonlySet<number>
  weekdays: ReadonlySet<number>
  /** Where both are restricted, a day matches by either. */
  eitherDay: boolean
  /** The hours are all or a step of all: the local times of a shift are gone, or there twice, as those of a clock. */
  steady: boolean
}

type Field = { name: string; from: number; to: number; names?: readonly string[] }

const MONTHS = ['JAN', 'FEB', 'MAR', 'APR', 'MAY', 'JUN', 'JUL', 'AUG', 'SEP', 'OCT', 'NOV', 'DEC']
const WEEKDAYS = ['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT']

const FIELDS: readonly Field[] = [
  { name: 'minute', from: 0, to: 59 },
  { name: 'hour', from: 0, to: 23 },
  { name: 'day of the month', from: 1, to: 31 },
  { name: 'month', from: 1, to: 12, names: MONTHS },
  { name: 'day of the week', from: 0, to: 7, names: WEEKDAYS },
]

const DAYS_IN_MONTH = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

const refuse = (message: string): never => raise('INVALID_CRON_EXPRESSION', { message, meta: { field: 'cron' } })

function numberOf(text: string, { name, from, to, names }: Field): number {
  const named = names?.indexOf(text.toUpperCase()) ?? -1
  if (named >= 0) return named + (from === 1 ? 1 : 0)
  const value = /^\d{1,2}$/.test(text) ? Number(text) : Number.NaN
  return value >= from && value <= to
    ? value
    : refuse(`The ${name} of a cron expression has no ${JSON.stringify(text)}`)
}

/** The values of a part of a list: `*`, a value, a range, the last two of them with a step. */
function valuesOf(part: string, field: Field): number[] {
  const { name, from, to } = field
  const [base, stepText, ...rest] = part.split('/')
  const ranged = base === '*' || base.includes('-')
  if (rest.length > 0 || (stepText !== undefined && !ranged))
    refuse(`The ${name} of a cron expression has no ${JSON.stringify(part)}`)
  const step = stepText === undefined ? 1 : /^\d{1,2}$/.test(stepText) ? Number(stepText) : 0
  if (step < 1 || step > to) refuse(`The ${name} of a cron expression has a step from 1 to ${to}`)
  const ends = base === '*' ? [from, to] : base.split('-').map(end => numberOf(end, field))
  const [first, last = first] = ends
  if (ends.length > 2 || first > last) refuse(`The ${name} of a cron expression has no ${JSON.stringify(part)}`)
  const values: number[] = []
  for (let value = first; value <= last; value += step) values.push(value)
  return values
}

const isStar = (text: string): boolean => text.startsWith('*')

/**
 * Reads a cron expression.
 * @throws INVALID_CRON_EXPRESSION for another form, and for one that never occurs
 */
export function parseCron(text: string): Cron {
  const parts = text.trim().split(/[ \t]+/)
  if (parts.length !== FIELDS.length) refuse('A cron expression has five fields')
  const [minutes, hours, days, months, weekdays] = FIELDS.map((field, index) => [
    ...new Set(parts[index].split(',').flatMap(part => valuesOf(part, field))),
  ])
  const eitherDay = !isStar(parts[2]) && !isStar(parts[4])
  // A day of the week comes in every month; a day of the month must be in one of the months.
  if (!eitherDay && !months.some(month => days.some(day => day <= DAYS_IN_MONTH[month - 1])))
    refuse('The cron expression names a day that none of its months has')
  const ascending = (values: number[]) => values.sort((a, b) => a - b)
  return {
    minutes: ascending(minutes),
    hours: ascending(hours),
    days: new Set(days),
    months: new Set(months),
    weekdays: new Set(weekdays.map(day => day % 7)),
    eitherDay,
    steady: isStar(parts[1]),
  }
}

/** Whether a name is that of a time zone. */
export function isTimezone(name: string): boolean {
  try {
    // Offsets are no zones: they have no rules.
    return !/^[+-]/.test(name) && formatOf(name) !== null
  } catch {
    return false
  }
}

const formats = new LRUCache<string, Intl.DateTimeFormat>({ max: 1000 })

function formatOf(zone: string): Intl.DateTimeFormat {
  let format = formats.get(zone)
  if (!format) {
    const digits = { year: 'numeric', month: 'numeric', day: 'numeric', hour: 'numeric', minute: 'numeric' } as const
    format = new Intl.DateTimeFormat('en-US', { ...digits, timeZone: zone, hourCycle: 'h23', era: 'short' })
    formats.set(zone, format)
  }
  return format
}

const MINUTE = 60_000
const DAY = 24 * 60 * MINUTE

/** The local time of an instant of whole minutes, as the instant at which UTC shows it. */
function localOf(instant: number, zone: string): number {
  if (zone === 'UTC') return instant
  const found: Record<string, number> = {}
  for (const { type, value } of formatOf(zone).formatToParts(instant)) found[type] = Number(value)
  return Date.UTC(found.year, found.month - 1, found.day, found.hour, found.minute)
}

/** Years in which every expression that occurs has occurred: 29 February skips 2100, and a weekday on it may take 40. */
const HORIZON_DAYS = 366 * 41

/** A stretch of time in which the offset of a zone stays as it is. */
type Stretch = { from: number; to: number; offset: number }

const HOUR = 60 * MINUTE
/** No zone is further off than 14 hours. */
const MOST_OFF = 15 * HOUR

const stretches = new LRUCache<string, Stretch[]>({ max: 2000 })

const offsetAt = (instant: number, zone: string): number => localOf(instant, zone) - instant

/** The stretches in which a local day may lie: two where the clock is put forward or back. */
function stretchesOf(day: number, zone: string): Stretch[] {
  const key = `${zone} ${day}`
  let found = stretches.get(key)
  if (found) return found
  const [start, end] = [day - MOST_OFF, day + DAY + MOST_OFF]
  found = [{ from: start, to: end, offset: offsetAt(start, zone) }]
  if (zone !== 'UTC')
    for (let hour = start + HOUR; hour <= end; hour += HOUR) {
      const last = found[found.length - 1]
      const offset = offsetAt(hour, zone)
      if (offset === last.offset) continue
      let [before, behind] = [hour - HOUR, hour]
      while (behind - before > MINUTE) {
        const middle = before + Math.floor((behind - before) / 2 / MINUTE) * MINUTE
        if (offsetAt(middle, zone) === last.offset) before = middle
        else behind = middle
      }
      last.to = behind
      found.push({ from: behind, to: end, offset })
    }
  stretches.set(key, found)
  return found
}

/** The instants of a local day, oldest first, at which an expression occurs; see `nextOf` for shifts. */
function* instantsOf(cron: Cron, day: number, zone: string): Generator<number> {
  const parts = stretchesOf(day, zone)
  const shown = (local: number): number[] =>
    parts.flatMap(({ from, to, offset }) => (local - offset >= from && local - offset < to ? local - offset : []))
  if (parts.length === 1) {
    for (const local of localTimes(cron, day)) yield local - parts[0].offset
    return
  }
  const instants = new Set<number>()
  for (const local of localTimes(cron, day)) {
    const found = shown(local)
    if (cron.steady) for (const instant of found) instants.add(instant)
    else instants.add(found[0] ?? shiftBehind(parts, local))
  }
  yield* [...instants].sort((a, b) => a - b)
}

function* localTimes({ hours, minutes }: Cron, day: number): Generator<number> {
  for (const hour of hours) for (const minute of minutes) yield day + hour * HOUR + minute * MINUTE
}

/** The shift that leaves a local time out. */
const shiftBehind = (parts: readonly Stretch[], local: number): number =>
  (parts.find(({ from, offset }) => from + offset > local) ?? parts[parts.length - 1]).from

/**
 * When an expression occurs next after an instant. Where a clock is put forward, a local time that it leaves out occurs once,
 * at the shift; where it is put back, a time that it shows twice occurs at the first. With an hour of `*` or a step of it the
 * expression goes on through both as the clock shows it.
 */
export function nextFiringTime(cron: Cron, after: Date, zone = 'UTC'): Date {
  const from = after.getTime()
  const first = Math.floor(localOf(Math.floor(from / MINUTE) * MINUTE, zone) / DAY) - 1
  for (let number = first; number < first + HORIZON_DAYS; number++) {
    const day = number * DAY
    if (!matchesDay(cron, new Date(day))) continue
    for (const instant of instantsOf(cron, day, zone)) if (instant > from) return new Date(instant)
  }
  return refuse('The cron expression never occurs')
}

function matchesDay({ months, days, weekdays, eitherDay }: Cron, date: Date): boolean {
  if (!months.has(date.getUTCMonth() + 1)) return false
  const day = days.has(date.getUTCDate())
  const weekday = weekdays.has(date.getUTCDay())
  return eitherDay ? day || weekday : day && weekday
}

const parsed = new LRUCache<string, Cron>({ max: 5000 })

/** When a stored schedule occurs next after an instant. */
export function nextOccurrence(text: string, zone: string | null, after: Date): Date {
  let cron = parsed.get(text)
  if (!cron) {
    cron = parseCron(text)
    parsed.set(text, cron)
  }
  return nextFiringTime(cron, after, zone ?? 'UTC')
}
