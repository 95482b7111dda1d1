import assert from 'node:assert/strict'
import { changesBetween } from '#core/api/compare.ts'
import { ExpressionError, freshBudget } from '#core/expressions/evaluate.ts'
import { evaluate, evaluateMapping } from '#core/expressions/evaluation.ts'
import { readPartOf } from '#core/expressions/references.ts'
import { compareVersions } from '#core/resources/version-comparison.ts'
import { startApp } from '../support/app.ts'
import { longestTurn, longestTurnAtBest } from '../support/event-loop.ts'
import { evaluate as evaluateHere } from '../support/expressions.ts'
import { forSuite } from '../support/suite.ts'

const KEYS = Object.fromEntries(Array.from({ length: 3000 }, (_, index) => [`k${index}`, 0]))
const range = (length: number) => Array.from({ length }, (_, index) => index)
const WORDS = range(2000).map(index => `word ${index}`)

/** Expressions of which each uses a large part of the budget, by the root that all read. */
const COSTLY = {
  literals: { length: [{ map: [{ var: 'eighty' }, KEYS] }] },
  operators: { reduce: [{ var: 'many' }, { '+': [{ var: 'accumulator' }, { '*': [{ var: 'current' }, 2] }] }, 0] },
  texts: { length: { filter: [{ var: 'words' }, { in: ['word 1', { cat: ['a', { var: '' }, 'x'.repeat(2000)] }] }] } },
  results: { map: [{ var: 'many' }, { a: { var: '' }, b: 'x' }] },
}
const ROOT = { eighty: range(80), many: range(20_000), words: WORDS }

describe('expressions in threads', () => {
  const app = forSuite(startApp)

  const inThreads = (expression: unknown, root: unknown, spent = freshBudget()) =>
    evaluate(app.services, 'proj_a', expression, root, { spent })

  for (const [name, expression] of Object.entries(COSTLY))
    it(`have the same results and costs as on the event loop, which is free meanwhile: ${name}`, async () => {
      const here = freshBudget()
      const expected = evaluateHere(expression, ROOT, here)
      await inThreads(expression, ROOT)
      const turn = await longestTurnAtBest(async () => {
        const there = freshBudget()
        assert.deepEqual(await inThreads(expression, ROOT, there), expected)
        assert.deepEqual(there, here)
      }, 50)
      assert.ok(turn < 50, `${turn} ms`)
    })

  it('have the same errors, also for those that share their budget', async () => {
    const spent = freshBudget()
    await inThreads(COSTLY.literals, ROOT, spent)
    for (const budget of [spent, spent]) await assert.rejects(inThreads(COSTLY.literals, ROOT, budget), isTooLong)
    await assert.rejects(inThreads(COSTLY.operators, { many: range(100_000) }), /applies too many operators/)
    const limits = { bytes: 1000, tooLarge: () => new Error('too large') }
    const mapping = { a: 1, b: { var: 'many' } }
    await assert.rejects(evaluateMapping(app.services, 'proj_a', mapping, ROOT, limits), /too large/)
    await assert.rejects(
      evaluateMapping(
        app.services,
        'proj_a',
        { first: 1, second: COSTLY.operators },
        { many: range(100_000) },
        {
          ...limits,
          failed: (key, error) => new Error(`${key} ${error.message}`),
        },
      ),
      /second applies too many operators/,
    )
  })

  it('share one budget also if each of them is brief', async () => {
    const spent = freshBudget()
    const brief = { length: [{ map: [{ var: 'few' }, KEYS] }] }
    const evaluateAll = async () => {
      for (const _ of range(30)) await inThreads(brief, { few: range(4) }, spent)
    }
    await assert.rejects(evaluateAll(), isTooLong)
  })

  it('that fill the memory of a thread end with an error', async function () {
    this.timeout(60_000)
    const root = { eighty: range(80), large: Array(3_000_000).fill({}) }
    const costly = { if: [{ length: { var: 'large' } }, { length: COSTLY.literals.length }] }
    // The rest of the root is not read, and does not count.
    assert.equal(await inThreads(COSTLY.literals, root), 80)
    await assert.rejects(inThreads(costly, root), (error: Error) => {
      assert.ok(error instanceof ExpressionError)
      return /takes too much memory to evaluate/.test(error.message)
    })
  })

  it('wait without the event loop when many are evaluated concurrently', async () => {
    const small = { map: [{ var: 'few' }, { '+': [{ var: '' }, 1] }] }
    const root = { few: range(900) }
    const turn = await longestTurnAtBest(() => Promise.all(range(100).map(() => inThreads(small, root))), 50)
    assert.ok(turn < 50, `${turn} ms`)
  })

  it('of one project do not delay expressions of others', async () => {
    const small = { map: [{ var: 'few' }, { '+': [{ var: '' }, 1] }] }
    const root = { few: range(900) }
    let ended = 0
    const many = range(300).map(async () => {
      await inThreads(small, root)
      ended++
    })
    await evaluate(app.services, 'proj_b', small, root)
    assert.ok(ended < 30, `${ended} evaluations of the other project before`)
    await Promise.all(many)
  })
})

describe('comparisons of large versions', () => {
  const app = forSuite(startApp)

  it('run in threads, with the same results', async () => {
    const nested = (leaf: unknown) => range(60).reduce<unknown>(value => [value], leaf)
    const keys = (from: number) => new Map(range(3000).map(index => [`k${from + index}`, { v: index }]))
    const before = { list: nested(range(12_000)), keys: keys(0) }
    const after = { list: nested(range(12_000).map(item => item + 1)), keys: new Map([...keys(1)].reverse()) }
    const expected = JSON.parse(JSON.stringify(changesBetween(before, after)))
    const compare = () => compareVersions(app.services, 'proj_a', before, after)
    assert.deepEqual(await compare(), expected)
    const [turn, here] = [await longestTurn(compare), await longestTurn(async () => changesBetween(before, after))]
    assert.ok(turn < here / 2, `${turn} of ${here} ms`)
  })

  it('that wait are bounded by their size', async () => {
    const version = (change: string) => range(3000).map(index => `${change} ${index} ${'x'.repeat(300)}`)
    const outcomes = await Promise.allSettled(
      range(40).map(() => compareVersions(app.services, 'proj_c', version('a'), version('b'))),
    )
    const refused = outcomes.filter(({ status }) => status === 'rejected')
    // Two megabytes each.
    assert.ok(refused.length >= 25 && refused.length < 40, `${refused.length} refused`)
    for (const each of refused) assert.match(String((each as PromiseRejectedResult).reason.message), /waiting/)
  })
})

describe('the part of a root that expressions read', () => {
  const root = { a: { b: { c: [1, { d: 2 }] }, toString: 3, x: 'text' }, n: 0, unread: 'x' }
  const partOf = (...expressions: unknown[]) => JSON.parse(JSON.stringify(readPartOf(root, expressions)))

  it('has the same values at their paths, and nothing else', () => {
    assert.deepEqual(partOf({ var: 'n' }, 'literal'), { n: 0 })
    assert.deepEqual(partOf({ var: 'a.b.c.1.d' }), { a: { b: { c: { 1: { d: 2 } } } } })
    assert.deepEqual(partOf({ '+': [{ var: 'a.b' }, { var: 'a.b.c' }] }), { a: { b: root.a.b } })
    assert.deepEqual(partOf({ missing: ['a.x', 'a.toString', 'toString.name', 'n.y'] }), {
      a: { x: 'text', toString: 3 },
    })
    assert.deepEqual(partOf({ map: [{ var: 'a.b.c' }, { var: 'd' }] }), { a: { b: { c: root.a.b.c } } })
  })

  it('is all of it for a read of all or of a computed path', () => {
    for (const expression of [{ var: '' }, { var: [] }, { var: { cat: ['a', '.x'] } }, { missing: { var: 'a' } }])
      assert.equal(readPartOf(root, [expression]), root)
  })
})

function isTooLong(error: Error): boolean {
  assert.ok(error instanceof ExpressionError)
  return /takes too long to evaluate/.test(error.message)
}
