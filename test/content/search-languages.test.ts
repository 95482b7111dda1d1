import { strict as assert } from 'node:assert'
import {
  LANGUAGES,
  type LabelledSet,
  labelledSet,
  qualityOfSet,
  searchLanguageOf,
  setSearch,
  writeSet,
} from '../bench/languages.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

const halfOf = ({ passages, distractors, questions }: LabelledSet): LabelledSet => {
  const topics = passages.length / 2
  return {
    passages: passages.slice(0, topics),
    distractors: distractors.slice(0, 3 * topics),
    questions: questions.filter(({ passage }, index) => passage < topics && index % 2 === 0),
  }
}

describe('search over labelled questions in eight languages', () => {
  const app = forSuite(() => startApp({ env: { EMBEDDING_PROVIDER: 'local' } }))

  it('has sixty questions, and four passages for each topic', () => {
    for (const language of LANGUAGES) {
      const { passages, distractors, questions } = labelledSet(language)
      assert.equal(questions.length, 60, language)
      assert.ok(distractors.length >= 3 * passages.length, language)
      assert.equal(new Set([...passages, ...distractors]).size, passages.length + distractors.length, language)
    }
  })

  // Half of the topics and of their questions; `npm run bench knowledge-languages` has all of them.
  for (const language of LANGUAGES)
    it(`finds answers among near passages in ${language}`, async function () {
      this.timeout(60_000)
      const set = halfOf(labelledSet(language))
      const { id, key } = await app.project()
      const settings = { search_language: searchLanguageOf(language) ?? 'auto' }
      assert.equal((await app.admin.patch(`/projects/${id}`, settings)).status, 200)
      await writeSet(set, async content => {
        const { status, body } = await key.post('/documents', { content })
        assert.equal(status, 201, JSON.stringify(body))
      })
      const { whole, words, missed } = await qualityOfSet(set, setSearch(key))
      assert.ok(whole.recall >= 0.9 && whole.reciprocal >= 0.8, JSON.stringify({ whole, missed: missed.whole }))
      assert.ok(words.recall >= 0.8 && words.reciprocal >= 0.8, JSON.stringify({ words, missed: missed.words }))
    })
})
