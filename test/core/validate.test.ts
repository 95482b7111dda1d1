import assert from 'node:assert/strict'
import { z } from 'zod'
import { enumListQuery } from '#core/api/lists.ts'
import { parse } from '#core/api/validate.ts'
import { AppError, type Problem } from '#core/base/errors.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

/** The first problem of a value, as `CODE path: message`. */
function problem(schema: z.ZodType, value: unknown): string {
  try {
    parse(schema, value)
  } catch (error) {
    assert.ok(error instanceof AppError)
    const { problems } = error.meta as { problems: Problem[] }
    return `${problems[0].code} ${error.message}`
  }
  return 'none'
}

describe('problems of a value', () => {
  it('is listed up to a hundred times', () => {
    const unknown = Object.fromEntries(Array.from({ length: 5000 }, (_, n) => [`key ${n}`, n]))
    const wrong = Array.from({ length: 5000 }, () => 'no number')
    for (const [schema, value] of [
      [z.strictObject({}), unknown],
      [z.array(z.number()), wrong],
    ] as const)
      assert.throws(
        () => parse(schema as z.ZodType, value),
        error => error instanceof AppError && (error.meta as { problems: Problem[] }).problems.length === 100,
      )
  })

  const Shape = z.discriminatedUnion('type', [
    z.strictObject({ type: z.literal('text'), text: z.string() }),
    z.strictObject({ type: z.literal('file'), file_id: z.string() }),
  ])

  for (const [schema, value, said] of [
    [z.string(), 5, 'INVALID_TYPE v: must be a string'],
    [z.string().nullable(), 5, 'INVALID_TYPE v: must be a string'],
    [z.int(), 0.5, 'INVALID_TYPE v: must be an integer'],
    [z.number(), '1', 'INVALID_TYPE v: must be a number'],
    [z.boolean(), 1, 'INVALID_TYPE v: must be true or false'],
    [z.array(z.string()), {}, 'INVALID_TYPE v: must be an array'],
    [z.strictObject({}), [], 'INVALID_TYPE v: must be an object'],
    [z.record(z.string(), z.string()), 'x', 'INVALID_TYPE v: must be an object'],
    [z.null(), 1, 'INVALID_TYPE v: must be null'],
    [z.never(), 1, 'INVALID_TYPE v: must be omitted'],
    [z.string(), undefined, 'REQUIRED v: is required'],
    [z.strictObject({}), { x: 1 }, 'UNKNOWN_PROPERTY v.x: is not a known property'],
    [z.literal('a'), 'b', 'INVALID_VALUE v: must be a'],
    [z.enum(['a', 'b']), 'c', 'INVALID_VALUE v: must be one of a, b'],
    [z.int().min(1), 0, 'TOO_SMALL v: must be at least 1'],
    [z.number().gt(0), 0, 'TOO_SMALL v: must be greater than 0'],
    [z.int().max(5), 6, 'TOO_BIG v: must be at most 5'],
    [z.number().lt(5), 5, 'TOO_BIG v: must be less than 5'],
    [z.int(), 1e300, 'TOO_BIG v: must be at most 9007199254740991'],
    [z.string().min(1), '', 'TOO_SMALL v: must not be empty'],
    [z.string().min(3), 'ab', 'TOO_SMALL v: must have at least 3 characters'],
    [z.string().max(1), 'ab', 'TOO_BIG v: must have at most 1 character'],
    [z.string().length(2), 'abc', 'TOO_BIG v: must have exactly 2 characters'],
    [z.array(z.int()).min(1), [], 'TOO_SMALL v: must not be empty'],
    [z.array(z.int()).max(2), [1, 2, 3], 'TOO_BIG v: must have at most 2 items'],
    [z.number().multipleOf(5), 4, 'NOT_MULTIPLE_OF v: must be a multiple of 5'],
    [z.string().regex(/^a+$/), 'b', 'INVALID_FORMAT v: must match /^a+$/'],
    [z.string().regex(/^a+$/, 'must be only a'), 'b', 'INVALID_FORMAT v: must be only a'],
    [z.iso.datetime(), 'b', 'INVALID_FORMAT v: must be an ISO 8601 time'],
    [z.uuid(), 'b', 'INVALID_FORMAT v: must be a valid uuid'],
    [
      z.record(z.string().min(2), z.int()),
      { x: 1 },
      'INVALID_KEY v.x: has an invalid key: must have at least 2 characters',
    ],
    [z.union([z.string(), z.array(z.string())]), 5, 'INVALID_UNION v: must be a string or an array'],
    [
      z.union([z.string(), z.array(Shape)]),
      [{ type: 'x' }],
      'INVALID_UNION v: must be a string, or [0].type must be one of text, file',
    ],
    [Shape, { type: 'x' }, 'INVALID_UNION v.type: must be one of text, file'],
    [Shape, {}, 'REQUIRED v.type: is required'],
    [z.string().refine(() => false), 'x', 'INVALID_VALUE v: is not valid'],
    [z.string().refine(() => false, 'is refused'), 'x', 'INVALID_VALUE v: is refused'],
  ] as [z.ZodType, unknown, string][])
    it(`is said in our own words: ${said}`, () => {
      assert.equal(problem(z.strictObject({ v: schema }), value === undefined ? {} : { v: value }), said)
    })

  it('has no index in a filter that was given once', () => {
    const Filter = z.object({ status: enumListQuery(['ready', 'failed']) })
    assert.deepEqual(parse(Filter, { status: 'ready' }), { status: ['ready'] })
    assert.equal(problem(Filter, { status: 'x' }), 'INVALID_VALUE status: must be one of ready, failed')
    assert.equal(problem(Filter, { status: '' }), 'INVALID_VALUE status: must be one of ready, failed')
    assert.equal(problem(Filter, { status: ['ready', 'x'] }), 'INVALID_VALUE status[1]: must be one of ready, failed')
  })

  describe('over HTTP', () => {
    const app = forSuite(startApp)

    it('reaches the caller in body and query', async () => {
      const { key } = await app.project()
      const body = await key.post('/knowledge/search', { query: 'x', limit: 0, include_documents: 'yes' })
      assert.deepEqual(
        body.body.error.meta.problems.map(
          ({ path, message }: { path: string; message: string }) => `${path} ${message}`,
        ),
        ['limit must be at least 1', 'include_documents must be true or false'],
      )
      const query = await key.get('/documents?status=nope')
      assert.match(query.body.error.message, /^status: must be one of pending, /)
    })
  })
})
