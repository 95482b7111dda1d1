import assert from 'node:assert/strict'
import { z } from 'zod'
import { deprecatedField, deprecationDates } from '#core/api/deprecation.ts'
import { operation } from '#core/api/operation.ts'
import { startApp, type TestApp } from '../support/app.ts'
import { loadBeside } from '../support/modules.ts'

const OPERATION = { since: '0.2.0', date: '2026-12-01', removal: '0.4.0' }
const FIELD = { since: '0.3.0', date: '2027-03-01', removal: '1.0.0' }
const seconds = (date: string) => `@${Date.parse(`${date}T00:00:00Z`) / 1000}`

describe('deprecation', function () {
  this.timeout(60_000)
  let app: TestApp
  let unload: () => void
  const common = { tag: 'System', gate: 'any', action: 'system:Test', transaction: false } as const
  const part = z.object({ new: z.string().optional(), old: deprecatedField(z.string().optional(), FIELD) })

  before(async () => {
    const operations = [
      operation({
        ...common,
        id: 'getTestDeprecated',
        method: 'get',
        path: '/test-deprecated',
        summary: 'Get a deprecated test',
        description: 'Returns nothing',
        deprecated: OPERATION,
        answers: { 200: z.object({}) },
        run: async () => ({}),
      }),
      operation({
        ...common,
        id: 'sendTestFields',
        method: 'post',
        path: '/test-fields',
        summary: 'Send deprecated test fields',
        query: z.object({ before: deprecatedField(z.string().optional().describe('Earlier name'), FIELD) }),
        body: z.object({ parts: z.array(part).optional(), current: z.string().optional() }),
        answers: { 200: z.object({}) },
        run: async () => ({}),
      }),
      operation({
        ...common,
        id: 'getTestAnswer',
        method: 'get',
        path: '/test-answer',
        summary: 'Get a deprecated test field',
        answers: { 200: z.object({ data: z.array(part.meta({ id: 'TestPart' })) }) },
        run: async () => ({ data: [] }),
      }),
    ]
    unload = loadBeside({ operations })
    app = await startApp()
  })
  after(async () => {
    await app?.close()
    unload?.()
  })

  const announced = ({ status, headers }: { status: number; headers: Headers }) => {
    assert.equal(status, 200)
    const link = headers.get('link')
    assert.equal(link === null, headers.get('deprecation') === null)
    if (link) assert.match(link, /^<http[^>]*\/docs\/changes>; rel="deprecation"; type="text\/html"$/)
    return headers.get('deprecation')
  }

  it('of an operation is in its description and its responses', async () => {
    assert.equal(announced(await app.admin.get('/test-deprecated')), seconds(OPERATION.date))
    const { paths } = (await app.anonymous.get('//openapi.json')).body
    const described = paths['/api/v1/test-deprecated'].get
    assert.equal(described.deprecated, true)
    assert.deepEqual(described['x-deprecated'], OPERATION)
    assert.equal(described.description, 'Returns nothing. Deprecated since 0.2.0, removed by 0.4.0.')
    const others = Object.values<any>(paths)
      .flatMap(methods => Object.values<any>(methods))
      .filter(({ deprecated }) => deprecated)
    assert.equal(others.length, 1)
  })

  it('of a field is in the response to a request that sends it', async () => {
    const send = (query: string, body: object) => app.admin.post(`/test-fields${query}`, body)
    assert.equal(announced(await send('', { current: 'x', parts: [{ new: 'x' }] })), null)
    assert.equal(announced(await send('?before=x', {})), seconds(FIELD.date))
    assert.equal(announced(await send('', { parts: [{ new: 'x' }, { old: 'x' }] })), seconds(FIELD.date))
  })

  it('of a field of responses is in all of them', async () => {
    assert.equal(announced(await app.admin.get('/test-answer')), seconds(FIELD.date))
  })

  it('of a field is in the description', async () => {
    const { paths, components } = (await app.anonymous.get('//openapi.json')).body
    const [parameter] = paths['/api/v1/test-fields'].post.parameters
      .map((each: any) => components.parameters[each.$ref?.split('/').at(-1)] ?? each)
      .filter(({ name }: any) => name === 'before')
    assert.deepEqual([parameter.deprecated, parameter['x-deprecated']], [true, FIELD])
    assert.equal(parameter.description, 'Earlier name. Deprecated since 0.3.0, removed by 1.0.0.')
    assert.equal(components.schemas.TestPart.properties.old.deprecated, true)
    assert.equal(components.schemas.TestPart.properties.new.deprecated, undefined)
  })

  it('lasts for two minor releases', () => {
    for (const removal of ['0.2.0', '0.3.0', '0.2.9'])
      assert.throws(() => deprecatedField(z.string(), { ...OPERATION, removal }), /removed by .*: too early/)
    assert.throws(() => deprecatedField(z.string(), { ...OPERATION, date: 'soon' }), /too early/)
    assert.equal(deprecatedField(z.string(), { ...OPERATION, removal: '0.4.0' }).meta()?.deprecated, true)
  })

  it('of a field is found in records, tuples, other fields and pipes, and in each place of a repeated schema', () => {
    const body = z
      .object({
        record: z.record(z.string(), part),
        tuple: z.tuple([z.string(), part], part),
        piped: z.preprocess(value => value, part),
        again: z.union([z.string(), z.object({ part })]),
      })
      .catchall(part)
    const dateOf = deprecationDates({ deprecated: null, query: null, body, answers: {} })
    const old = { old: 'x' }
    const sent = [{ record: { any: old } }, { tuple: ['x', old] }, { tuple: ['x', {}, old] }, { piped: old }]
    for (const each of [...sent, { again: { part: old } }, { any: old }])
      assert.equal(dateOf?.({ query: {}, body: each }), FIELD.date, JSON.stringify(each))
    for (const each of [old, { record: old }, { again: 'old' }, { again: { part: { new: 'x' } } }])
      assert.equal(dateOf?.({ query: {}, body: each }), null, JSON.stringify(each))
    for (const answer of [z.record(z.string(), part), z.tuple([part]), z.looseObject({ part }), z.lazy(() => part)])
      assert.ok(deprecationDates({ deprecated: null, query: null, body: null, answers: { 200: answer } }))
  })

  it('of a field is found in schemas of which each contains all others', () => {
    const count = 30
    const nodes: z.ZodType[] = Array.from({ length: count }, (_, index) =>
      z.lazy(() =>
        z.object({
          ...Object.fromEntries(nodes.map((node, at) => [`to_${at}`, node.optional()])),
          ...(index === count - 1 && { old: deprecatedField(z.string().optional(), FIELD) }),
        }),
      ),
    )
    const dateOf = deprecationDates({ deprecated: null, query: null, body: nodes[0], answers: { 200: nodes[0] } })
    assert.equal(dateOf?.({ query: {}, body: {} }), FIELD.date)
    const sending = deprecationDates({ deprecated: null, query: null, body: nodes[0], answers: {} })
    const last = `to_${count - 1}`
    assert.equal(sending?.({ query: {}, body: { to_3: { to_7: { [last]: { old: 'x' } } } } }), FIELD.date)
    assert.equal(sending?.({ query: {}, body: { to_3: { [last]: { to_3: { old: 'x' } } } } }), null)
  })

  it('is not announced where nothing is deprecated', async () => {
    assert.equal(announced(await app.admin.get('/projects')), null)
  })
})
