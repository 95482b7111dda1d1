import assert from 'node:assert/strict'
import { SchemaError } from '#core/json-schema/model.ts'
import { CompiledSchemas } from '#core/json-schema/validate.ts'

describe('JSON Schemas of callers', () => {
  const schemas = new CompiledSchemas()
  const checkSchema = (text: string, rules: { strict: boolean }) => schemas.check('proj_a', text, rules)
  const schemaProblems = (text: string, value: unknown, rules: { strict: boolean }) =>
    schemas.problems('proj_a', text, value, rules)
  const strict = { strict: true }
  const lenient = { strict: false }
  const problems = (schema: object | boolean, value: unknown, rules = strict) =>
    schemaProblems(JSON.stringify(schema), value, rules)
  const keywords = (schema: object | boolean, value: unknown, rules = strict) =>
    problems(schema, value, rules).map(({ keyword }) => keyword)
  const refuses = (schema: unknown, reason: RegExp, rules = strict) =>
    assert.throws(
      () => checkSchema(JSON.stringify(schema), rules),
      error => error instanceof SchemaError && reason.test(error.message),
      JSON.stringify(schema).slice(0, 200),
    )
  const accepts = (schema: object, rules = strict) => checkSchema(JSON.stringify(schema), rules)
  /** Runs something and returns the processor time of this thread that it took, in ms. */
  const held = (work: () => void): number => {
    const before = process.threadCpuUsage()
    work()
    const { user, system } = process.threadCpuUsage(before)
    return (user + system) / 1000
  }
  // Far above the limits, which are processor time too, and far below the time without the limit.
  const BOUND = 5000

  it('name every place by its pointer, and the property that must not be there', () => {
    const schema = {
      type: 'object',
      required: ['quarter'],
      properties: { quarter: {}, a: { type: 'array', items: { type: 'integer' } } },
      additionalProperties: false,
    }
    assert.deepEqual(problems(schema, { a: [1, 'x'], 'b/c': 1 }), [
      { keyword: 'required', pointer: '', message: "must have required property 'quarter'", missing: 'quarter' },
      { keyword: 'additionalProperties', pointer: '', message: "must NOT have additional properties: 'b/c'" },
      { keyword: 'type', pointer: '/a/1', message: 'must be integer' },
    ])
    assert.deepEqual(problems(schema, { quarter: 1, a: [] }), [])
  })

  it('name at most 50 places', () => {
    assert.equal(problems({ items: { type: 'string' } }, Array(500).fill(1)).length, 50)
  })

  it('assert the five formats where they are strict and none where they are not', () => {
    const wrong: Record<string, string> = {
      date: '2026-02-30',
      'date-time': '2026-01-01 later',
      email: 'nobody',
      uri: 'no uri',
      uuid: '123',
    }
    const right: Record<string, string> = {
      date: '2026-02-28',
      'date-time': '2026-01-01T10:00:00Z',
      email: 'a@example.com',
      uri: 'https://example.com/a',
      uuid: '2c1d3b4a-0f63-4a3c-9f1e-6f2b7a0e9d11',
    }
    for (const [format, value] of Object.entries(wrong)) {
      assert.deepEqual(keywords({ format }, value), ['format'], format)
      assert.deepEqual(keywords({ format }, value, lenient), [], format)
      assert.deepEqual(keywords({ format }, right[format]), [], format)
    }
    assert.deepEqual(keywords({ format: 'ipv4' }, 'nonsense'), [], 'other formats are annotations')
  })

  it('are of draft 2020-12 unless they say draft-07', () => {
    const tuple = { items: [{ type: 'string' }] }
    const named = { $schema: 'http://json-schema.org/draft-07/schema#', ...tuple }
    refuses(tuple, /schema is invalid/)
    assert.deepEqual(keywords(named, [1]), ['type'])
    assert.deepEqual(keywords(tuple, [1], lenient), ['type'])
    assert.deepEqual(keywords({ prefixItems: [{ type: 'string' }] }, [1]), ['type'])
    refuses({ $schema: 'http://json-schema.org/draft-04/schema#' }, /must be draft-07 or 2020-12/)
    refuses({ $schema: 7 }, /must be draft-07 or 2020-12/)
  })

  it('refuse invalid schemas', () => {
    for (const rules of [strict, lenient]) {
      refuses({ type: 'nope' }, /schema is invalid/, rules)
      refuses([], /must be a JSON Schema object/, rules)
      refuses('x', /must be a JSON Schema object/, rules)
      refuses(true, /must be a JSON Schema object/, rules)
      refuses(null, /must be a JSON Schema object/, rules)
      refuses({ properties: [] }, /schema is invalid/, rules)
      refuses({ pattern: '(' }, /./, rules)
      refuses({ $async: true }, /./, rules)
      refuses({ description: 'x'.repeat(65_536) }, /64 KiB/, rules)
    }
  })

  it('refer to nothing outside of themselves', () => {
    for (const rules of [strict, lenient]) {
      refuses({ $ref: 'https://example.com/schema' }, /not part of it/, rules)
      refuses({ $defs: { unused: { $ref: 'https://example.com/schema' } } }, /not part of it/, rules)
      refuses({ $ref: 'https://json-schema.org/draft/2020-12/schema' }, /not part of it/, rules)
      refuses({ $ref: 'file:///etc/passwd' }, /not part of it/, rules)
      refuses({ $ref: 'other.json' }, /other\.json/, rules)
      refuses({ $id: 'https://example.com/a', properties: { x: { $ref: 'b' } } }, /can't resolve/, rules)
      refuses({ $ref: '#/$defs/missing' }, /missing/, rules)
      accepts({ $id: 'https://example.com/a', $ref: 'https://example.com/a#/$defs/b', $defs: { b: {} } }, rules)
      accepts({ const: { $ref: 'https://example.com/schema' } }, rules)
    }
    assert.deepEqual(keywords({ $ref: '#/$defs/n', $defs: { n: { type: 'null' } } }, 1), ['type'])
  })

  it('follow references to themselves as deep as the value goes', () => {
    const tree = { type: 'object', properties: { child: { $ref: '#' } }, required: ['name'] }
    assert.deepEqual(keywords(tree, { name: 1, child: { name: 1, child: {} } }), ['required'])
    const dynamic = {
      $dynamicAnchor: 'node',
      properties: { child: { $dynamicRef: '#node' }, name: { type: 'string' } },
    }
    assert.deepEqual(keywords(dynamic, { child: { child: { name: 1 } } }), ['type'])
  })

  it('see own properties only', () => {
    assert.deepEqual(keywords({ required: ['toString'] }, {}), ['required'])
    assert.deepEqual(keywords({ required: ['__proto__'] }, {}), ['required'])
    assert.deepEqual(keywords({ properties: { constructor: { type: 'string' } } }, {}), [])
    const given = JSON.parse('{"__proto__":{"polluted":true}}')
    assert.deepEqual(keywords({ required: ['__proto__'] }, given), [])
    assert.deepEqual(
      schemaProblems('{"properties":{"__proto__":{"type":"string"}},"$defs":{"__proto__":{}}}', given, strict).length <=
        1,
      true,
    )
    assert.equal(({} as { polluted?: boolean }).polluted, undefined)
  })

  it('cannot change what other schemas mean through their ids', () => {
    for (const $id of [
      'https://json-schema.org/draft/2020-12/schema',
      'http://json-schema.org/draft-07/schema',
      'https://json-schema.org/draft/2020-12/meta/core',
      '#',
      '',
    ]) {
      try {
        accepts({ $id, type: 'string' })
      } catch (error) {
        assert.ok(error instanceof SchemaError)
      }
      refuses({ type: 'nope', title: $id }, /schema is invalid/)
      refuses({ $schema: 'http://json-schema.org/draft-07/schema#', type: 'nope', title: $id }, /schema is invalid/)
      assert.deepEqual(keywords({ type: 'string', title: $id }, 1), ['type'])
    }
    accepts({ $id: 'https://example.com/same', type: 'string' })
    assert.deepEqual(keywords({ $id: 'https://example.com/same', type: 'number' }, 1), [])
  })

  it('match patterns as JavaScript writes them, anywhere in the text', () => {
    const matches = (pattern: string, text: string, rules = strict) => keywords({ pattern }, text, rules).length === 0
    for (const rules of [strict, lenient]) {
      assert.ok(matches('b', 'abc', rules))
      assert.ok(!matches('^b', 'abc', rules))
      assert.ok(matches('^\\p{L}+$', 'héllo', rules))
      assert.ok(matches('^\\u0041(?<n>b)\\/[\\w-]+$', 'Ab/c-d', rules))
      assert.ok(!matches('^a$', 'a\n', rules))
    }
    const schema = { patternProperties: { '^x-': { type: 'string' } }, propertyNames: { pattern: '^[a-z-]+$' } }
    assert.deepEqual(keywords(schema, { 'x-a': 1, B: 1 }).sort(), ['pattern', 'propertyNames', 'type'])
  })

  it('refuse patterns that need backtracking where they are strict', () => {
    for (const pattern of ['(a)\\1', '(?=a)b', '(?!a)b', 'a{1,5000}', '((a{1,100}){1,100}){1,100}'])
      refuses({ pattern }, /./)
    refuses({ patternProperties: { '(a)\\1': {} } }, /./)
    assert.deepEqual(keywords({ pattern: '^(?!admin)[a-z]+$' }, 'admin', lenient), ['pattern'])
    assert.deepEqual(keywords({ pattern: '^(?!admin)[a-z]+$' }, 'user', lenient), [])
  })

  it('are judged in bounded time whatever their patterns', () => {
    const text = `${'a'.repeat(50_000)}!`
    for (const pattern of ['^(a+)+$', '^(a|a)*$', '(a*)*b', '^(([a-z])+.)+[A-Z]([a-z])+$', '^(a?){50}a{50}$'])
      assert.ok(held(() => problems({ pattern }, text)) < BOUND, pattern)
    const backtracking = { pattern: '^(?=a)(a+)+$' }
    let found: string[] = []
    assert.ok(held(() => (found = keywords(backtracking, text, lenient))) < BOUND)
    assert.deepEqual(found, ['timeout'])
    // Interrupted validators are made again.
    assert.deepEqual(keywords(backtracking, 'aaa', lenient), [])
  })

  it('are judged in bounded time whatever they refer to', () => {
    const chain: Record<string, object> = { d40: { type: 'string' } }
    for (let index = 0; index < 40; index++) {
      const next = { $ref: `#/$defs/d${index + 1}` }
      chain[`d${index}`] = { allOf: [next, next] }
    }
    const exponential = { $ref: '#/$defs/d0', $defs: chain }
    let found: string[] = []
    assert.ok(held(() => (found = keywords(exponential, 1))) < BOUND)
    assert.deepEqual(found, ['timeout'])
    for (const endless of [
      { allOf: [{ $ref: '#' }] },
      { $ref: '#/$defs/a', $defs: { a: { anyOf: [{ $ref: '#/$defs/a' }] } } },
    ])
      assert.deepEqual(keywords(endless, 1), ['recursion'])
    const wide = { uniqueItems: true }
    assert.ok(
      held(
        () =>
          (found = keywords(
            wide,
            Array.from({ length: 20_000 }, (_, a) => ({ a })),
          )),
      ) < BOUND,
    )
    assert.deepEqual(found, ['timeout'])
  })

  it('are compiled in bounded time, and refused when that is not enough', () => {
    const long: Record<string, object> = {}
    for (let index = 0; index < 1500; index++) long[`d${index}`] = { $ref: `#/$defs/d${index + 1}` }
    long.d1500 = {}
    let nested: object = {}
    for (let depth = 0; depth < 2000; depth++) nested = { not: nested }
    const shared = { properties: Object.fromEntries(Array.from({ length: 900 }, (_, index) => [`p${index}`, true])) }
    const repeated = {
      $defs: { shared },
      allOf: Array.from({ length: 2000 }, () => ({ $ref: '#/$defs/shared' })),
    }
    const enumerated = {
      $schema: 'http://json-schema.org/draft-07/schema#',
      enum: Array.from({ length: 9000 }, (_, index) => [index]),
    }
    for (const schema of [{ $ref: '#/$defs/d0', $defs: long }, nested, repeated, enumerated])
      for (const rules of [strict, lenient]) {
        const took = held(() => {
          try {
            accepts(schema, rules)
          } catch (error) {
            assert.ok(error instanceof SchemaError, String(error))
          }
        })
        assert.ok(took < BOUND, `${JSON.stringify(schema).slice(0, 80)} ${took} ms`)
      }
    refuses(nested, /nested too deeply|invalid/)
  })

  it('are judged to an end by a process that others keep from the processor', () => {
    const pause = new Int32Array(new SharedArrayBuffer(4))
    let looks = 0
    const value = {
      get slow() {
        looks++
        Atomics.wait(pause, 0, 0, 40)
        return 1
      },
    }
    assert.deepEqual(keywords({ properties: { slow: { type: 'string' } } }, value), ['type'])
    assert.ok(looks > 1, 'the first try is interrupted')
  })

  it('hold a schema of 64 KiB of ordinary properties', () => {
    const properties: Record<string, object> = {}
    for (let index = 0; index < 1000; index++) properties[`property_${index}`] = { type: 'string', maxLength: 100 }
    const schema = { type: 'object', properties }
    assert.deepEqual(keywords(schema, { property_999: 1 }), ['type'])
    // Compiled once: some of many judgements take no longer than a judgement does.
    const judged = Array.from({ length: 20 }, () =>
      held(() => assert.deepEqual(keywords(schema, { property_1: 1 }), ['type'])),
    )
    assert.ok(Math.min(...judged) < 50, `${Math.min(...judged)} ms`)
  })
})
