import assert from 'node:assert/strict'
import { z } from 'zod'
import { flatSchema, flatten, unflatten } from '#core/api/flatten.ts'
import { type Operation, operation, operations } from '#core/api/operation.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'

describe('the flat form of a call', () => {
  before(() => loadModules(modules))

  const posting = (body: z.ZodType, more: Partial<Operation> = {}) => {
    const declared = operation({
      id: 'moveThing',
      method: 'post',
      path: '/things/{thing_id}/move',
      summary: 'Move a thing',
      tag: 'Things',
      action: 'things:MoveThing',
      query: z.object({ wait: z.boolean().optional(), tags: z.record(z.string(), z.string()).optional() }),
      body,
      answers: { 200: z.object({}) },
      run: async () => ({}),
    })
    return { ...declared, ...more }
  }
  const names = (of: Operation) =>
    [...(flatten(of)?.fields.values() ?? [])].map(({ name, in: part }) => `${part}:${name}`)
  const required = (of: Operation) => (flatten(of) && flatSchema(flatten(of) as never).required) as string[]

  it('keeps the name in the path and the query, and prefixes it in the body', () => {
    const move = posting(z.strictObject({ thing_id: z.string(), wait: z.boolean(), to: z.string().optional() }))
    assert.deepEqual(names(move), [
      'path:thing_id',
      'query:wait',
      'query:tags',
      'body:body_thing_id',
      'body:body_wait',
      'body:to',
    ])
    assert.deepEqual(required(move), ['thing_id', 'body_thing_id', 'body_wait'])
    const flat = { thing_id: 'a', wait: true, tags: { n: 'x' }, body_thing_id: 'b', body_wait: false, to: 'c' }
    assert.deepEqual(unflatten(move, flat), {
      params: { thing_id: 'a' },
      query: { wait: 'true', tags: { n: 'x' } },
      body: { thing_id: 'b', wait: false, to: 'c' },
    })
  })

  it('lays the branches of a body over each other; required is what each of them requires', () => {
    const left = z.strictObject({ type: z.literal('left'), to: z.string(), speed: z.number() })
    const right = z.strictObject({ type: z.literal('right'), to: z.string(), how: z.string() })
    for (const body of [z.union([left, right]), z.discriminatedUnion('type', [left, right]).meta({ id: 'Moves' })]) {
      const move = posting(body)
      assert.deepEqual(names(move).slice(3), ['body:type', 'body:to', 'body:speed', 'body:how'])
      assert.deepEqual(required(move), ['thing_id', 'type', 'to'])
      const type = flatten(move)?.fields.get('type')?.schema
      assert.deepEqual(type?.anyOf, [
        { type: 'string', const: 'left' },
        { type: 'string', const: 'right' },
      ])
    }
    const joined = posting(z.intersection(z.object({ a: z.string() }), z.object({ b: z.string().optional() })))
    assert.deepEqual(names(joined).slice(3), ['body:a', 'body:b'])
    assert.deepEqual(required(joined), ['thing_id', 'a'])
  })

  it('reads a named body, and a body that refers to a named schema, without references', () => {
    const of = operations.get('createPolicy')
    assert.doesNotMatch(JSON.stringify(flatSchema(flatten(of) as never)), /\$ref/)
    const document: any = flatten(of)?.fields.get('document')?.schema
    assert.equal(document.properties.statement.type, 'array')
  })

  it('has a body of any names as one property, and refuses names next to it', () => {
    const of = operations.get('replaceActorTags')
    const schema: any = flatSchema(flatten(of) as never)
    assert.deepEqual(schema.properties.tags, {
      type: 'object',
      additionalProperties: { type: 'string', maxLength: 256 },
    })
    assert.deepEqual([schema.required, schema.additionalProperties], [['actor_id', 'tags'], false])
    const tags = { team: 'a', actor_id: 'b', tags: 'c' }
    assert.deepEqual(unflatten(of, { actor_id: 'actor_1', tags }), {
      params: { actor_id: 'actor_1' },
      query: {},
      body: tags,
    })
    for (const wrong of [{}, { tags: null }, { tags: ['x'] }, { tags: {}, team: 'a' }])
      assert.throws(
        () => unflatten(of, { actor_id: 'actor_1', ...wrong }),
        (error: any) => error.code === 'VALIDATION_FAILED',
      )
  })

  it('refuses missing path parameters and unknown names, each by its path', () => {
    const move = posting(z.strictObject({ to: z.string() }))
    assert.throws(
      () => unflatten(move, { thing_id: 5, form: 'x', wait: true }, { at: 'input', without: ['wait'] }),
      (error: any) => {
        const { problems } = error.meta
        assert.deepEqual(
          problems.map(({ code, path }: any) => `${code} ${path}`),
          ['REQUIRED input.thing_id', 'UNKNOWN_PROPERTY input.form', 'UNKNOWN_PROPERTY input.wait'],
        )
        return error.code === 'VALIDATION_FAILED'
      },
    )
  })

  it('needs nothing of a body that may be absent, and has none for bodies that are not JSON', () => {
    const body = z.strictObject({ to: z.string() })
    const optional = posting(body, { bodyOptional: true })
    assert.deepEqual(required(optional), ['thing_id'])
    assert.equal(unflatten(optional, { thing_id: 'a' }).body, undefined)
    assert.deepEqual(unflatten(posting(body), { thing_id: 'a' }).body, {})
    assert.equal(flatten(posting(body, { consumes: ['text/csv'] })), null)
  })

  it('brings each operation back apart from an object of all of its fields', () => {
    for (const of of operations.all()) {
      const call = flatten(of)
      if (!call) continue
      const fields = [...call.fields.values()]
      const flat = Object.fromEntries(fields.map(({ name }) => [name, `of ${name}`]))
      const { params, query, body } = unflatten(of, { ...flat, ...(call.map && { [call.map.name]: {} }) })
      const parts: Record<string, any> = { path: params, query, body: body ?? {} }
      for (const { name, field, in: part } of fields) assert.equal(parts[part][field], `of ${name}`, `${of.id} ${name}`)
      const count = Object.values(parts).reduce((sum, each) => sum + Object.keys(each).length, 0)
      assert.equal(count, fields.length, of.id)
    }
  })
})
