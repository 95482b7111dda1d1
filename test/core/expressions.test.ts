import assert from 'node:assert/strict'
import { ExpressionError, expressionProblem } from '#core/expressions/evaluate.ts'
import { pathsOf } from '#core/expressions/references.ts'
import { processorMs } from '../support/event-loop.ts'
import { evaluate } from '../support/expressions.ts'

const DATA = {
  a: { b: [10, { c: 'deep' }] },
  list: [1, 2, 3, 4],
  name: 'Ada',
  empty: [],
  zero: 0,
  nothing: null,
  'x.y': 1,
}

const is = (expression: unknown, expected: unknown) =>
  assert.deepEqual(evaluate(expression, DATA), expected, JSON.stringify(expression))

describe('expressions', () => {
  it('are objects with one key that is an operator; anything else is walked as a literal', () => {
    is({ var: 'name' }, 'Ada')
    is('text', 'text')
    is({ var: 'name', and: 1 }, { var: 'name', and: 1 })
    is({ variable: { var: 'name' } }, { variable: 'Ada' })
    is([{ deep: [{ at: { var: 'a.b.1.c' } }] }], [{ deep: [{ at: 'deep' }] }])
    is({}, {})
    is({ toString: 1 }, { toString: 1 })
  })

  it('give results that are final', () => {
    const data = { made: { var: 'secret' }, secret: 1 }
    assert.deepEqual(evaluate({ var: 'made' }, data), { var: 'secret' })
    assert.deepEqual(evaluate({ map: [[1], { var: '' }] }, data), [1])
    is({ preserve: { var: 'name' } }, { var: 'name' })
    is({ kept: { preserve: [{ '+': [1, 2] }] } }, { kept: [{ '+': [1, 2] }] })
  })

  it('read own properties by a dotted path, with a default', () => {
    is({ var: 'a.b.0' }, 10)
    is({ var: ['a.b.0'] }, 10)
    is({ var: 'a.b.7' }, null)
    is({ var: ['a.b.7', 'other'] }, 'other')
    is({ var: ['missing', { var: 'name' }] }, 'Ada')
    is({ var: 'list.length' }, 4)
    is({ length: { var: 'list' } }, 4)
    assert.deepEqual(evaluate({ var: '' }, 7), 7)
    for (const path of [
      '__proto__',
      'constructor',
      'prototype',
      'toString',
      'a.__proto__.x',
      'list.map',
      'name.length',
    ])
      is({ var: path }, null)
    assert.equal(evaluate({ var: '__proto__' }, JSON.parse('{"__proto__":1}')), null)
  })

  it('have every operator of the documentation', () => {
    const cases: [unknown, unknown][] = [
      [{ missing: ['name', 'nope', 'nothing'] }, ['nope', 'nothing']],
      [{ missing: { merge: ['nope', ['name']] } }, ['nope']],
      [{ missing_some: [1, ['name', 'nope']] }, []],
      [{ missing_some: [2, ['name', 'nope']] }, ['nope']],
      [{ if: [{ var: 'zero' }, 'a', { var: 'name' }, 'b', 'c'] }, 'b'],
      [{ if: [false, 'a'] }, null],
      [{ '?:': [true, 1, 2] }, 1],
      [{ '==': [1, '1'] }, true],
      [{ '==': [null, 0] }, false],
      [{ '!=': [1, '2'] }, true],
      [{ '===': [1, '1'] }, false],
      [{ '!==': [1, '1'] }, true],
      [{ '!': [[]] }, true],
      [{ '!': { var: 'empty' } }, true],
      [{ '!!': ['0'] }, true],
      [{ '!!': [{ var: 'list' }] }, true],
      [{ and: [1, 0, 2] }, 0],
      [{ or: [0, '', 'x'] }, 'x'],
      [{ '??': [{ var: 'nothing' }, 0, 5] }, 0],
      [{ '<': [1, 2, 3] }, true],
      [{ '<': [1, 5, 3] }, false],
      [{ '<=': [1, 1] }, true],
      [{ '>': ['b', 'a'] }, true],
      [{ '>=': [3, 2, 2] }, true],
      [{ max: [1, 5, 3] }, 5],
      [{ min: [1, 5, 3] }, 1],
      [{ '+': ['1', 2, true] }, 4],
      [{ '+': '7' }, 7],
      [{ '-': [5, 2] }, 3],
      [{ '-': [5] }, -5],
      [{ '*': [2, 3, 4] }, 24],
      [{ '/': [7, 2] }, 3.5],
      [{ '%': [7, 4] }, 3],
      [{ map: [{ var: 'list' }, { '*': [{ var: '' }, 2] }] }, [2, 4, 6, 8]],
      [{ filter: [{ var: 'list' }, { '>': [{ var: '' }, 2] }] }, [3, 4]],
      [{ reduce: [{ var: 'list' }, { '+': [{ var: 'accumulator' }, { var: 'current' }] }, 10] }, 20],
      [{ all: [{ var: 'list' }, { '>': [{ var: '' }, 0] }] }, true],
      [{ all: [{ var: 'empty' }, true] }, false],
      [{ none: [{ var: 'empty' }, true] }, true],
      [{ some: [{ var: 'list' }, { '===': [{ var: '' }, 3] }] }, true],
      [{ merge: [[1], 2, [[3]]] }, [1, 2, [3]]],
      [{ in: ['da', { var: 'name' }] }, true],
      [{ in: [3, { var: 'list' }] }, true],
      [{ in: [3, 5] }, false],
      [{ cat: ['a', 1, null, true, [1, 2]] }, 'a1true1,2'],
      [{ substr: ['jsonlogic', 4] }, 'logic'],
      [{ substr: ['jsonlogic', -5] }, 'logic'],
      [{ substr: ['jsonlogic', 1, 3] }, 'son'],
      [{ substr: ['jsonlogic', 4, -2] }, 'log'],
      [{ length: 'four' }, 4],
      [{ length: 7 }, 0],
    ]
    for (const [expression, expected] of cases) is(expression, expected)
  })

  it('never throw over types: they coerce as JavaScript does, without code of the data', () => {
    is({ '<': [null, 500] }, true)
    is({ '<': [{ var: 'nope' }, 500] }, true)
    is({ '+': ['x', 1] }, null)
    is({ '/': [1, 0] }, null)
    is({ max: [] }, null)
    is({ map: [5, 1] }, [])
    is({ reduce: [null, 1, 'first'] }, 'first')
    is({ cat: { var: 'a' } }, '[object Object]')
    const hostile = { o: { toString: 1, valueOf: 'x' } }
    for (const operator of ['==', '<', '+', '-', 'cat', 'in', 'substr', 'max', '%'])
      assert.doesNotThrow(() => evaluate({ [operator]: [{ var: 'o' }, { var: 'o' }] }, hostile))
  })

  it('cost no more than their budget', () => {
    const range = Array.from({ length: 1000 }, (_, index) => index)
    const refused = (expression: unknown, root: unknown = { range }) => {
      const started = performance.now()
      assert.throws(() => evaluate(expression, root), ExpressionError, JSON.stringify(expression).slice(0, 100))
      assert.ok(performance.now() - started < 5000)
    }
    const over = (body: unknown) => ({ map: [{ var: 'range' }, body] })
    refused(over({ map: [range, { '+': [{ var: '' }, 1] }] }))
    // Literals count although they are no operators.
    refused(over(range.flatMap(() => range.slice(0, 40))))
    const doubling = (body: unknown) => ({ reduce: [range, body, 'x'.repeat(100)] })
    refused(doubling({ cat: [{ var: 'accumulator' }, { var: 'accumulator' }] }))
    refused(doubling([{ var: 'accumulator' }, { var: 'accumulator' }]))
    refused({ cat: [doubling([{ var: 'accumulator' }, { var: 'accumulator' }])] })
    refused({ cat: [{ reduce: [range, [{ var: 'accumulator' }], 1] }] })
    refused({ reduce: [range, [{ var: 'accumulator' }], 1] })
    // Shared values are written out: a small structure becomes a million values.
    refused({ reduce: [range.slice(0, 20), [{ var: 'accumulator' }, { var: 'accumulator' }], 0] })
    refused({ reduce: [range, { merge: [{ var: 'accumulator' }, { var: 'accumulator' }] }, range] })
    const text = 'a'.repeat(10_000)
    refused(over({ in: [`${'a'.repeat(60)}b`, { var: '' }] }), { range: range.map(() => text) })
    refused({ var: 'large' }, { large: 'x'.repeat(11 * 1024 * 1024) })
    assert.equal((evaluate({ var: 'large' }, { large: 'x'.repeat(9_000_000) }) as string).length, 9_000_000)
  })

  it('search for long parts of texts in time linear in both', async () => {
    const text = 'a'.repeat(3_000_000)
    const search = (part: string) => evaluate({ in: [part, { var: 'text' }] }, { text })
    const ms = await processorMs(() => {
      assert.equal(search(`${'a'.repeat(30_000)}b${'a'.repeat(30_000)}`), false)
      assert.equal(search('a'.repeat(60_000)), true)
    })
    assert.ok(ms < 1000, `${ms} ms`)
  })

  it('are kept up to 64 KiB and 100 levels', () => {
    const nested = (levels: number) => {
      let value: unknown = 1
      for (let level = 0; level < levels; level++) value = [value]
      return value
    }
    assert.equal(expressionProblem(nested(100)), null)
    assert.match(expressionProblem(nested(101)) as string, /100 levels/)
    assert.equal(expressionProblem('x'.repeat(65_534)), null)
    assert.match(expressionProblem('x'.repeat(65_535)) as string, /64 KiB/)
  })

  it('list the paths that they read of their root', () => {
    assert.deepEqual(pathsOf({ a: { var: 'input.x' }, b: [{ var: ['steps.one', { var: 'input.y' }] }] }), [
      'input.x',
      'steps.one',
      'input.y',
    ])
    assert.deepEqual(pathsOf({ map: [{ var: 'list' }, { var: 'item' }] }), ['list'])
    assert.deepEqual(pathsOf({ reduce: [{ var: 'l' }, { var: 'current' }, { var: 'first' }] }), ['l', 'first'])
    assert.deepEqual(pathsOf({ preserve: { var: 'x' } }), [])
    assert.deepEqual(pathsOf({ missing: ['x', 'y'] }), ['x', 'y'])
    assert.deepEqual(pathsOf({ missing_some: [1, ['x']] }), ['x'])
  })
})
