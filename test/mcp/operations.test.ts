import assert from 'node:assert/strict'
import { flatten } from '#core/api/flatten.ts'
import { kinds } from '#core/api/kind.ts'
import { type Context, type Operation, result } from '#core/api/operation.ts'
import { operationTools } from '#mcp/registry.ts'
import { startApp, type TestApp } from '../support/app.ts'
import { type Ids, type Random, randomOf, sample } from '../support/fuzz.ts'
import { tools } from './support.ts'

type Json = Record<string, any>

const ROUNDS = 3

/** Each operation sends the same request as a tool and over REST. */
describe('operations as tools', () => {
  let app: TestApp
  /** Well-formed IDs; they are not resolved. */
  let ids: Ids
  let asked: Json | null = null
  const originals = new Map<Operation, Operation>()
  before(async () => {
    const own = Object.fromEntries(kinds.all().map(({ prefix }) => [prefix, [`${prefix}_1`]]))
    ids = { own, foreign: own, messages: [['conv_1', 'doc_1']] }
    for (const { operation } of operationTools()) {
      // Computed before the operation is changed, because the arguments depend on it.
      flatten(operation)
      originals.set(operation, { ...operation })
      Object.assign(operation, {
        gate: 'any',
        shape: 'other',
        admit: undefined,
        receive: undefined,
        prepare: null,
        transaction: false,
        reads: true,
        run: async ({ params, query, body, page }: Context<Json, object | undefined>) => {
          // An empty body where one may be left out is none.
          const given = Object.keys(body ?? {}).length > 0 ? body : undefined
          asked = structuredClone({ params: { ...params }, query: { ...query }, body: given, page })
          return result(200, { asked: true })
        },
      })
    }
    app = await startApp()
  })
  after(async () => {
    for (const [operation, original] of originals) Object.assign(operation, original)
    await app?.close()
  })

  /** A query value; empty if it is equal to an omitted one. */
  const queryText = (name: string, value: unknown): string[] => {
    if (value === null || value === '') return []
    if (Array.isArray(value)) return value.flatMap(each => queryText(name, each))
    if (typeof value === 'object' && value !== null)
      return Object.entries(value).flatMap(([key, each]) => queryText(`${name}[${key}]`, each))
    return [`${encodeURIComponent(name)}=${encodeURIComponent(String(value))}`]
  }

  /** Arguments that fit the schema of a tool: every required one, and half of the others. */
  function argumentsFor(operation: Operation, random: Random): Json {
    const args: Json = {}
    for (const { name, in: part, field, required, schema } of flatten(operation)?.fields.values() ?? []) {
      if (field === 'stream') continue
      // Only tools wait by default, so `wait` is sent to both.
      if (field === 'wait') args[name] = random.chance(0.5)
      else if (part === 'path') args[name] = `id_${random.int(1000)}`
      else if (required || random.chance(0.5)) {
        const value = sample(schema as Json, field, random, ids, {})
        if (part === 'body' || queryText(field, value).length > 0) args[name] = value
      }
    }
    const { map } = flatten(operation) ?? {}
    if (map) args[map.name] = { team: 'a', ...(random.chance(0.5) && { actor_id: 'b' }) }
    return args
  }

  /** The same call over REST; returns the request, or the problems of a refusal. */
  async function overRest(operation: Operation, args: Json): Promise<unknown> {
    asked = null
    let path = operation.path
    const query: string[] = []
    const { map } = flatten(operation) ?? {}
    const body: Json = map ? args[map.name] : {}
    for (const { name, in: part, field } of flatten(operation)?.fields.values() ?? []) {
      if (!Object.hasOwn(args, name)) continue
      if (part === 'path') path = path.replace(`{${field}}`, encodeURIComponent(args[name]))
      else if (part === 'query') query.push(...queryText(field, args[name]))
      else body[field] = args[name]
    }
    const target = query.length > 0 ? `${path}?${query.join('&')}` : path
    const method = operation.method as 'post'
    const bodiless = !operation.body || (operation.bodyOptional && Object.keys(body).length === 0)
    const reply = bodiless
      ? await (app.admin as any)[method](target, ...(['get', 'delete'].includes(method) ? [] : [undefined]))
      : // As text, so that the profile of cells adds nothing.
        await app.admin[method](target, JSON.stringify(body))
    return asked ?? reply.body.error
  }

  it('send the same request as REST for the same arguments', async () => {
    const call = tools(app.url, app.admin.token)
    const random = randomOf(20261125)
    let reached = 0
    for (const { name, operation } of operationTools())
      for (let round = 0; round < ROUNDS; round++) {
        const args = argumentsFor(operation, random)
        const rest = await overRest(operation, args)
        asked = null
        const result = await call(name, args)
        const mcp = asked ?? result.structuredContent?.error
        assert.deepEqual(mcp, rest, `${name} with ${JSON.stringify(args)}`)
        if (asked) reached++
      }
    assert.ok(reached > operationTools().length, `only ${reached} calls were valid`)
  })
})
