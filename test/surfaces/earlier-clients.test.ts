import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { eventually } from '../support/app.ts'
import { contentOf, EXCHANGE_APP, type Exchange, knownOf, type Recording } from './record-exchanges.ts'

type Json = Record<string, any>
type StreamEvent = { event?: string; data: unknown }

const DIRECTORY = path.resolve(import.meta.dirname, 'exchanges')
const ID = /\b[a-z]+(?:_[a-z]+)*_[0-9a-z]{20,}\b/g

const isObject = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value)
const isStream = (value: unknown): value is StreamEvent[] =>
  Array.isArray(value) && value.every(each => isObject(each) && 'event' in each && 'data' in each)

/** Returns what two values have in common; null where they differ. */
function shared(a: unknown, b: unknown): unknown {
  if (Array.isArray(a) && Array.isArray(b)) return [...a, ...b]
  if (isObject(a) && isObject(b))
    return Object.fromEntries(Object.keys(a).flatMap(name => (name in b ? [[name, shared(a[name], b[name])]] : [])))
  return typeof a === typeof b && !Array.isArray(a) && !isObject(a) ? a : null
}

/** Returns the fields of an earlier value that a value of today lacks, or has with another type. */
function lost(before: unknown, now: unknown, at = ''): string[] {
  if (before === null || before === undefined) return []
  if (Array.isArray(before)) {
    if (!Array.isArray(now)) return [`${at} is no list`]
    if (before.length === 0) return []
    const common = before.reduce(shared)
    return now.length === 0 ? [`${at} is empty`] : now.flatMap(each => lost(common, each, `${at}[]`))
  }
  if (!isObject(before))
    return typeof before === typeof now && now !== null ? [] : [`${at} is ${now === null ? now : typeof now}`]
  if (!isObject(now)) return [`${at} is no object`]
  return Object.keys(before).flatMap(name =>
    name in now ? lost(before[name], now[name], `${at}.${name}`) : [`${at}.${name} is missing`],
  )
}

/** Returns what an answer of today lacks of an earlier one; the events of a stream are compared by name. */
function lostOf(before: unknown, now: unknown): string[] {
  if (!isStream(before) || !Array.isArray(now)) return lost(before, now)
  return [...new Set(before.map(each => each.event))].flatMap(name => {
    const of = (events: StreamEvent[]) => events.filter(each => each.event === name).map(each => each.data)
    return lost(of(before), of(now), `event ${name}`)
  })
}

/** Adds the ids of today that have the places of earlier ids. */
function learn(ids: Map<string, string>, before: unknown, now: unknown): void {
  if (typeof before === 'string' && typeof now === 'string') {
    const [old, current] = [before.match(ID) ?? [], now.match(ID) ?? []]
    if (old.length === current.length)
      for (const [index, id] of old.entries()) if (!ids.has(id)) ids.set(id, current[index])
  } else if (Array.isArray(before) && Array.isArray(now))
    for (const [index, each] of before.entries()) learn(ids, each, now[index])
  else if (isObject(before) && isObject(now))
    for (const name of Object.keys(before)) learn(ids, before[name], now[name])
}

describe('clients of an earlier version', function () {
  this.timeout(180_000)
  let app: AgentApp
  beforeEach(async () => {
    app = await startAgentApp({ workers: [...EXCHANGE_APP.workers] })
  })
  afterEach(() => app?.close())

  /** Repeats a recorded request with the ids of today. */
  const repeat = async ({ as, method, path, headers, body }: Exchange, translated: (text: string) => string) => {
    const token = { key: app.key.token, admin: app.admin.token, none: null }[as ?? 'none']
    const response = await fetch(`${app.url}${translated(path)}`, {
      method,
      headers: { ...headers, ...(token ? { authorization: `Bearer ${token}` } : {}) },
      ...(body === undefined ? {} : { body: translated(body) }),
    })
    return {
      status: response.status,
      answer: contentOf(response.headers.get('content-type') ?? '', await response.text()),
    }
  }

  for (const file of fs.readdirSync(DIRECTORY))
    it(`find every field of the answers to the requests of ${path.parse(file).name}`, async () => {
      const { known, exchanges } = JSON.parse(fs.readFileSync(path.join(DIRECTORY, file), 'utf8')) as Recording
      const ids = new Map<string, string>()
      learn(ids, known, knownOf(app))
      const translated = (text: string) =>
        text.replaceAll(known.double, app.double.url).replace(ID, id => ids.get(id) ?? id)
      assert.ok(exchanges.length > 80)
      for (const exchange of exchanges) {
        const what = `${exchange.method} ${exchange.path}`
        let found = await repeat(exchange, translated)
        const isComplete = () => found.status === exchange.status && lostOf(exchange.answer, found.answer).length === 0
        // Workers may be slower than at the time of the recording.
        if (exchange.method === 'GET' && !isComplete())
          await eventually(async () => {
            found = await repeat(exchange, translated)
            return isComplete()
          }).catch(() => {})
        assert.equal(found.status, exchange.status, `${what}: ${JSON.stringify(found.answer)}`)
        assert.deepEqual(lostOf(exchange.answer, found.answer), [], what)
        const { error } = exchange.answer as Json
        if (error && exchange.status >= 400) assert.equal((found.answer as Json).error.code, error.code, what)
        learn(ids, exchange.answer, found.answer)
      }
    })
})
