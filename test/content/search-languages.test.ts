import { strict as assert } from 'node:assert'
import { LANGUAGES, labelledSet, qualityOfSet, searchLanguageOf, setSearch, writeSet } from '../bench/languages.ts'
import { startApp, type TestApp } from '../support/app.ts'

describe('search over labelled questions in eight languages', () => {
  let app: TestApp
  before(async () => {
    app = await startApp({ env: { EMBEDDING_PROVIDER: 'local' } })
  })
  after(() => app.close())

  it('has sixty questions, and four passages for each topic', () => {
    for (const language of LANGUAGES) {
      const { passages, distractors, questions } = labelledSet(language)
      assert.equal(questions.length, 60, language)
      assert.ok(distractors.length >= 3 * passages.length, language)
      assert.equal(new Set([...passages, ...distractors]).size, passages.length + distractors.length, language)
    }
  })

  // A fifth of the questions; `npm run bench knowledge-languages` has all of them.
  for (const language of LANGUAGES)
    it(`finds answers among near passages in ${language}`, async function () {
      this.timeout(60_000)
      const set = labelledSet(language)
      const { id, key } = await app.project()
      const settings = { search_language: searchLanguageOf(language) ?? 'auto' }
      assert.equal((await app.admin.patch(`/projects/${id}`, settings)).status, 200)
      await writeSet(set, async content => {
        const { status, body } = await key.post('/documents', { content })
        assert.equal(status, 201, JSON.stringify(body))
      })
      const questions = set.questions.filter((_, index) => index % 5 === 0)
      const { whole, words, missed } = await qualityOfSet({ ...set, questions }, setSearch(key))
      assert.ok(whole.recall >= 0.9 && whole.reciprocal >= 0.8, JSON.stringify({ whole, missed: missed.whole }))
      assert.ok(words.recall >= 0.8 && words.reciprocal >= 0.8, JSON.stringify({ words, missed: missed.words }))
    })
})
