import { strict as assert } from 'node:assert'
import { type Golden, passages, type Quality, quality, questions } from '../bench/golden.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const K = 10

/** What the search reaches with the built-in embedder; a change of it that falls below has made it worse. */
const baseline: Record<string, Quality> = {
  exact: { recall: 1, reciprocal: 1 },
  paraphrase: { recall: 0.79, reciprocal: 0.65 },
  entity: { recall: 1, reciprocal: 1 },
  all: { recall: 0.9, reciprocal: 0.83 },
}

describe('knowledge search over labelled questions', () => {
  const app = forSuite(() => startApp({ env: { EMBEDDING_PROVIDER: 'local' } }))
  /** Names of passages by question: as ranked, and by each channel alone. */
  const fused = new Map<Golden, string[]>()
  const vector = new Map<Golden, string[]>()
  const lexical = new Map<Golden, string[]>()

  before(async () => {
    const { key } = await app.project()
    const names = new Map<string, string>()
    for (const [name, content] of Object.entries(passages)) {
      const made = await key.post('/documents', { content, path: `/${name}.txt` })
      assert.equal(made.status, 201)
      names.set(made.body.id, name)
    }
    const ask = async (query: string, limit: number): Promise<any[]> =>
      (await key.post('/knowledge/search', { query, limit })).body.results
    const nameOf = (result: { document_id: string }) => names.get(result.document_id) as string
    for (const question of questions) {
      fused.set(question, (await ask(question.query, K)).map(nameOf))
      // A long answer shows what each channel found, by its ranks.
      const all = await ask(question.query, 100)
      for (const [channel, ranking] of [
        ['vector', vector],
        ['lexical', lexical],
      ] as const) {
        const ranked = all.filter(({ signals }) => signals[channel] !== undefined)
        ranked.sort((left, right) => left.signals[channel] - right.signals[channel])
        ranking.set(question, ranked.map(nameOf))
      }
    }
  })

  const of = (ranking: Map<Golden, string[]>) => quality(question => ranking.get(question) as string[], K)

  const slices = ['exact', 'paraphrase', 'entity', 'all']

  it('has fifty questions and more in three slices', () => {
    assert.ok(questions.length >= 50)
    assert.deepEqual([...new Set(questions.map(({ slice }) => slice))], slices.slice(0, 3))
    for (const { answers } of questions) for (const name of answers) assert.ok(name in passages, name)
  })
  it('is not worse than it was', () => {
    const reached = of(fused)
    for (const slice of slices) {
      assert.ok(reached[slice].recall >= baseline[slice].recall, `${slice}: recall ${reached[slice].recall}`)
      assert.ok(reached[slice].reciprocal >= baseline[slice].reciprocal, `${slice}: MRR ${reached[slice].reciprocal}`)
    }
  })
  it('finds every exact token among the first five', () => {
    assert.equal(quality(question => fused.get(question) as string[], 5).exact.recall, 1)
  })
  it('ranks better with both channels than with either, and in no slice worse', () => {
    const [both, meaning, words] = [of(fused), of(vector), of(lexical)]
    for (const one of [meaning, words]) {
      assert.ok(both.all.recall > one.all.recall)
      assert.ok(both.all.reciprocal > one.all.reciprocal)
      for (const slice of slices) {
        assert.ok(both[slice].recall >= one[slice].recall, slice)
        assert.ok(both[slice].reciprocal >= one[slice].reciprocal, slice)
      }
    }
  })
})
