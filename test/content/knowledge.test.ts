import { strict as assert } from 'node:assert'
import { type Client, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

const allow = (resource: string[], action = ['knowledge:SearchKnowledge']) => ({
  statement: [{ effect: 'Allow', action, resource }],
})

describe('knowledge search', () => {
  const app = forSuite(() => startApp({ env: { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '256' } }))
  let project: { id: string; key: Client }
  const write = async (body: object, by: Client = project.key) =>
    (await createdBy(by, '/documents', body)) as { id: string; path: string }
  const search = async (body: object, by: Client = project.key) =>
    (await createdBy(by, '/knowledge/search', body, 200)) as { results: any[]; degraded_channels: string[] }
  const refuse = async (body: object, status = 400, by: Client = project.key) => {
    const answer = await by.post('/knowledge/search', body)
    assert.equal(answer.status, status, `${JSON.stringify(body)}: ${JSON.stringify(answer.body)}`)
    return answer.body.error
  }
  /** A user who may only search what the resources name. */
  const searcher = (resources: string[]) => app.user(undefined, [allow(resources)])
  beforeEach(async () => {
    project = await app.project()
  })

  describe('its results', () => {
    it('puts the one document with an exact token first of two hundred', async () => {
      await Promise.all(
        Array.from({ length: 199 }, (_, index) =>
          write({ content: `Spare part number ${index} of the SKU catalogue, revision ${4700 + (index % 11)}` }),
        ),
      )
      const wanted = await write({ content: 'Replaced by SKU-4711, which fits both frames' })
      const { results } = await search({ query: 'SKU-4711' })
      assert.equal(results[0].document_id, wanted.id)
      assert.equal(results[0].signals.lexical, 1)
    })
    it('finds an exact sentence by both channels, first, with its cosine', async () => {
      const sentence = 'The boiler shuts down when the return temperature exceeds ninety degrees'
      const wanted = await write({ content: sentence, title: 'Boiler', metadata: { a: 1 }, tags: { t: 'x' } })
      await write({ content: 'Cats sleep most of the day' })
      const { results, degraded_channels } = await search({ query: sentence })
      const [first] = results
      const { score, similarity_score, signals, chunk_id, created_at, updated_at, file_id, ...rest } = first
      assert.deepEqual(rest, {
        source_type: 'document',
        content: sentence,
        project_id: project.id,
        tags: { t: 'x' },
        document_id: wanted.id,
        chunk_index: 0,
        page: null,
        path: wanted.path,
        filename: wanted.path.slice(1),
        title: 'Boiler',
        content_type: 'text/plain',
        size: Buffer.byteLength(sentence),
        metadata: { a: 1 },
      })
      assert.match(chunk_id, /^dchunk_/)
      assert.match(file_id, /^file_/)
      assert.ok(created_at <= updated_at)
      assert.ok(similarity_score > 0.9)
      assert.deepEqual(signals, { vector: 1, lexical: 1 })
      assert.equal(score, 2 / 61)
      assert.deepEqual(degraded_channels, [])
    })
    it('never lets scores rise down the list, nor any beyond two first ranks', async () => {
      for (let index = 0; index < 30; index++)
        await write({ content: `Pump ${index} moves water ${index % 3 ? 'slowly' : 'fast'} through pipe ${index % 7}` })
      for (const [query, k] of [
        ['water pump', 60],
        ['fast pipe 3', 1],
        ['moves 12', 0.5],
      ] as const) {
        const { results } = await search({ query, rrf_k: k, limit: 50 })
        assert.equal(results.length, 30)
        for (const [index, { score }] of results.entries()) {
          assert.ok(score <= 2 / (k + 1))
          if (index > 0) assert.ok(score <= results[index - 1].score)
        }
      }
    })
    it('ranks the words in their order before words in another order', async () => {
      await write({ content: 'gate gate gate red red red', path: '/apart.txt' })
      const wanted = await write({ content: `the red gate is open ${'and so on '.repeat(40)}`, path: '/phrase.txt' })
      const { results } = await search({ query: 'red gate' })
      assert.equal(results.find(({ signals }) => signals.lexical === 1).document_id, wanted.id)
    })
    it('finds rows that have some rare words when none has all, after rows that have all', async () => {
      await write({ content: 'zebra crossing near the harbour', path: '/some.txt' })
      await write({ content: 'quagga', path: '/none.txt' })
      const all = await write({ content: 'zebra okapi tapir', path: '/all.txt' })
      const { results } = await search({ query: 'zebra okapi tapir' })
      const lexical = results.filter(({ signals }) => signals.lexical)
      assert.equal(lexical[0].document_id, all.id)
      const more = (await search({ query: 'zebra harbour okapi wombat' })).results
      assert.deepEqual(
        more
          .filter(({ signals }) => signals.lexical)
          .map(({ path }) => path)
          .sort(),
        ['/all.txt', '/some.txt'],
      )
    })
    it('requires quoted words and omits excluded words', async () => {
      await write({ content: 'blue whale', path: '/whale.txt' })
      await write({ content: 'whale blue', path: '/reversed.txt' })
      const paths = async (query: string) =>
        (await search({ query })).results.filter(({ signals }) => signals.lexical).map(({ path }) => path)
      assert.deepEqual(await paths('"blue whale"'), ['/whale.txt'])
      assert.deepEqual(await paths('whale -"blue whale"'), ['/reversed.txt'])
      assert.deepEqual(await paths('whale -blue'), [])
    })
    it('answers a query without words, and hostile ones', async () => {
      await write({ content: 'something' })
      for (const query of [
        '!!!',
        ' ',
        "'",
        '"',
        '-',
        '- -',
        "' | '",
        'a & b | !c <-> d',
        '\\',
        ':*',
        '~pproj',
        '%_%',
        '\u{1f600}',
        '()',
        `'~p${project.id}'`,
        'x'.repeat(8000),
        'a b '.repeat(2000),
        '日本語',
        'É\u0301',
        '"unclosed',
        "it's 'quoted' \\'",
        '-'.repeat(8000),
        '- '.repeat(4000),
        `something ${'-'.repeat(40)}else`,
        '-&|(<!)'.repeat(1000),
      ]) {
        const answer = await project.key.post('/knowledge/search', { query })
        assert.equal(answer.status, 200, `${query.slice(0, 40)}: ${JSON.stringify(answer.body)}`)
        assert.deepEqual(answer.body.degraded_channels, [])
      }
      assert.deepEqual((await search({ query: '!!!' })).results, [])
    })
    it('takes dashes and rules for punctuation', async () => {
      const { id } = await write({ content: 'the harbour master reads the tide tables' })
      for (const query of [
        'harbour - tide',
        'harbour -- tide',
        `harbour\n${'-'.repeat(60)}\ntide`,
        'harbour ---tide',
      ]) {
        const { results } = await search({ query })
        assert.deepEqual([results[0].document_id, results[0].signals.lexical], [id, 1], query)
      }
      assert.equal('lexical' in (await search({ query: 'harbour -tide' })).results[0].signals, false)
    })
    it('ranks by long queries in time', async () => {
      const content = Array.from({ length: 1000 }, (_, index) => `sturgeon ${index}`.padEnd(40, '.')).join('')
      await write({ content, chunk_strategy: 'size', chunk_size: 40, chunk_overlap: 0 })
      for (const query of ['sturgeon '.repeat(880), 'sturgeon or '.repeat(660)]) {
        const started = performance.now()
        const { results, degraded_channels } = await search({ query })
        assert.deepEqual([results.length, degraded_channels], [10, []])
        assert.ok(performance.now() - started < 3000, `${performance.now() - started} ms`)
      }
    })
    it('gives rows that words alone have found their cosine', async () => {
      for (let index = 0; index < 12; index++)
        await write({ content: `common filler text ${index}`, path: `/${index}` })
      const { results } = await search({ query: 'filler', min_similarity: 1, limit: 100 })
      assert.equal(results.length, 12)
      for (const { signals, similarity_score } of results) {
        assert.deepEqual(Object.keys(signals), ['lexical'])
        assert.ok(similarity_score > 0 && similarity_score < 1)
      }
    })
    it('applies min_similarity, and min_score, to what meaning alone has found', async () => {
      await write({ content: 'one two three four five' })
      await write({ content: 'six seven eight nine ten' })
      for (const name of ['min_similarity', 'min_score']) {
        const { results } = await search({ query: 'one two three four five six', [name]: 0.99 })
        for (const { signals, similarity_score } of results) assert.ok(signals.lexical || similarity_score >= 0.99)
      }
      assert.equal((await search({ query: '"one two six"' })).results.length, 2)
      assert.equal((await search({ query: '"one two six"', min_similarity: 0.99 })).results.length, 0)
    })
    it('takes a limited number of chunks of a document, and the next ones move up', async () => {
      const long = Array.from({ length: 12 }, (_, index) => `walrus number ${index} ${'w'.repeat(60)}`).join(' ')
      const many = await write({ content: long, chunk_strategy: 'size', chunk_size: 80, chunk_overlap: 0 })
      const other = await write({ content: 'a walrus elsewhere' })
      const count = ({ results }: { results: any[] }, id: string) =>
        results.filter(({ document_id }) => document_id === id).length
      assert.ok(count(await search({ query: 'walrus', limit: 5 }), many.id) > 2)
      const spread = await search({ query: 'walrus', limit: 5, max_chunks_per_document: 2 })
      assert.equal(count(spread, many.id), 2)
      assert.equal(count(spread, other.id), 1)
    })
    it('adds the chunks around each chunk on request', async () => {
      await write({
        content: 'alpha one. beta two.. gamma three delta four. ',
        chunk_strategy: 'size',
        chunk_size: 11,
        chunk_overlap: 0,
      })
      const found = async (neighbors: number | undefined) =>
        (await search({ query: 'gamma', ...(neighbors === undefined ? {} : { neighbors }) })).results[0]
      const none = await found(undefined)
      assert.ok(!('context_before' in none) && !('context_after' in none))
      const { chunk_index } = none
      const chunks = (await project.key.get(`/documents/${none.document_id}/chunks`)).body.data.map(
        (chunk: { content: string }) => chunk.content,
      )
      const one = await found(1)
      assert.equal(one.context_before, chunks[chunk_index - 1])
      assert.equal(one.context_after, chunks[chunk_index + 1] ?? null)
      const three = await found(3)
      assert.equal(three.context_before, chunks.slice(Math.max(0, chunk_index - 3), chunk_index).join('\n'))
    })
  })

  describe('its request', () => {
    it('refuses invalid searches', async () => {
      for (const body of [
        {},
        { query: '' },
        { query: '', document_ids: [], document_paths: '', metadata: {}, tags: {}, memory_store_ids: [] },
        { query: 'x', include_documents: false, include_memories: false },
        { query: 5 },
        { query: null },
        { query: 'x'.repeat(8001) },
        { query: 'x', limit: 0 },
        { query: 'x', limit: 'x' },
        { query: 'x', limit: 1.5 },
        { query: 'x', min_similarity: 1.1 },
        { query: 'x', min_similarity: -0.1 },
        { query: 'x', min_similarity: 0.1, min_score: 0.2 },
        { query: 'x', rrf_k: 0 },
        { query: 'x', rrf_k: 1001 },
        { query: 'x', recency_half_life_days: -1 },
        { query: 'x', recency_half_life_days: 36501 },
        { query: 'x', max_chunks_per_document: 0 },
        { query: 'x', max_chunks_per_document: 101 },
        { query: 'x', neighbors: 4 },
        { query: 'x', neighbors: -1 },
        { query: 'x', document_ids: Array(501).fill('doc_x') },
        { query: 'x', document_paths: Array(51).fill('/a') },
        { query: 'x', document_paths: '../..' },
        { query: 'x', memory_store_ids: Array(51).fill('m') },
        { query: 'x', document_ids: [1] },
        { query: 'x', document_ids: { a: 1 } },
        { query: 'x', tags: { a: 1 } },
        { query: 'x', tags: 'a' },
        { query: 'x', metadata: 'a' },
        { query: 'x', metadata: { a: { gt: true } } },
        { query: 'x', include_documents: 'yes' },
        { query: 'x', nonsense: 1 },
        { query: 'x', rerank: {} },
        { query: 'x', rerank: { tool_id: 't', top_n: 0 } },
        { query: 'x', rerank: { tool_id: 't', top_n: 101 } },
        { query: 'x', project_id: 7 },
        { query: 'a\u0000b' },
        { query: '\ud800' },
        { query: 'x', document_ids: ['\u0000'] },
      ])
        assert.equal((await refuse(body)).code, 'VALIDATION_FAILED', JSON.stringify(body).slice(0, 100))
      assert.equal((await refuse({ query: 'x', metadata: { a: { gt: true } } })).meta.field, 'a')
      assert.equal((await project.key.post('/knowledge/search')).status, 400)
      assert.equal((await project.key.post('/knowledge/search', '[1]')).status, 400)
      assert.equal((await app.anonymous.post('/knowledge/search', { query: 'x' })).status, 401)
    })
    it('takes the same minimum twice', async () => {
      await search({ query: 'x', min_similarity: 0.5, min_score: 0.5 })
    })
    it('takes more than a hundred as a hundred', async () => {
      const long = Array.from({ length: 130 }, (_, index) => `otter ${String(index).padStart(3, '0')}`).join(' ')
      await write({ content: long, chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 })
      assert.equal((await search({ query: 'otter', limit: 1000 })).results.length, 100)
    })
    it('narrows documents by id, path, metadata and tags, one or several', async () => {
      const a = await write({
        content: 'heron',
        path: '/a/x.txt',
        metadata: { quarter: 'Q1', n: 3 },
        tags: { team: 'red' },
      })
      const b = await write({
        content: 'heron',
        path: '/a',
        metadata: { quarter: 'Q2' },
        tags: { team: 'red', lead: 'yes' },
      })
      const c = await write({ content: 'heron', path: '/ab/x.txt', metadata: { quarter: 'Q1' } })
      const found = async (filter: object) => {
        const ids = async (body: object) =>
          (await search(body)).results.map(({ document_id }) => document_id as string).sort()
        const asked = await ids({ query: 'heron', ...filter })
        // The same filter without a query reads the same rows.
        assert.deepEqual(await ids(filter), asked)
        return asked
      }
      const some = (...made: { id: string }[]) => made.map(({ id }) => id).sort()
      assert.deepEqual(await found({ document_paths: '/a' }), some(a, b))
      assert.deepEqual(await found({ document_paths: ['a/', '/ab/x.txt'] }), some(a, b, c))
      assert.deepEqual(await found({ document_paths: '/%' }), [])
      assert.deepEqual(await found({ document_paths: '/' }), some(a, b, c))
      assert.deepEqual(await found({ document_ids: a.id }), some(a))
      assert.deepEqual(
        await found({ document_ids: [a.id, c.id, 'doc_00000000000000000000000000', 'nonsense'] }),
        some(a, c),
      )
      assert.deepEqual(await found({ metadata: { quarter: 'Q1' } }), some(a, c))
      assert.deepEqual(await found({ metadata: { quarter: 'Q1', n: { gte: 3 } } }), some(a))
      assert.deepEqual(await found({ tags: { team: 'red' } }), some(a, b))
      assert.deepEqual(await found({ tags: { team: 'red', lead: 'yes' } }), some(b))
      assert.deepEqual(await found({ tags: { team: 'red' }, document_paths: '/a/x.txt' }), some(a))
    })
    it('lets metadata hold for every result of a query', async () => {
      for (let index = 0; index < 8; index++)
        await write({ content: `report on sales ${index}`, metadata: { quarter: index % 2 ? 'Q1' : 'Q2' } })
      const { results } = await search({ query: 'report on sales', metadata: { quarter: 'Q1' } })
      assert.equal(results.length, 4)
      for (const { metadata } of results) assert.equal(metadata.quarter, 'Q1')
    })
    it('reads without a query in the order of creation and chunks, unranked', async () => {
      const first = await write({
        content: 'aaaa bbbb cccc',
        chunk_strategy: 'size',
        chunk_size: 5,
        chunk_overlap: 0,
        tags: { k: 'v' },
      })
      const second = await write({ content: 'dddd', tags: { k: 'v' } })
      const { results, degraded_channels } = await search({
        tags: { k: 'v' },
        min_similarity: 0.9,
        rrf_k: 5,
        recency_half_life_days: 3,
      })
      assert.deepEqual(
        results.map(({ document_id, chunk_index }) => [document_id, chunk_index]),
        [
          [first.id, 0],
          [first.id, 1],
          [first.id, 2],
          [second.id, 0],
        ],
      )
      assert.deepEqual(degraded_channels, [])
      for (const result of results)
        for (const name of ['score', 'similarity_score', 'signals']) assert.ok(!(name in result))
      assert.equal((await search({ tags: { k: 'v' }, limit: 2 })).results.length, 2)
      assert.ok('context_after' in (await search({ tags: { k: 'v' }, neighbors: 1 })).results[0])
    })
    it('queries the sources that the request names', async () => {
      await write({ content: 'ibis' })
      const none = { memory_store_ids: ['memstore_00000000000000000000000000'] }
      assert.deepEqual((await search(none)).results, [])
      assert.equal((await search({ query: 'ibis', ...none })).results.length, 1)
      assert.deepEqual((await search({ query: 'ibis', include_documents: false })).results, [])
      assert.deepEqual((await search({ document_paths: '/', include_documents: false })).results, [])
      assert.equal((await search({ query: 'ibis', include_memories: false })).results.length, 1)
    })
    it('refuses a reranker that does not exist, and one without a project', async () => {
      const unknown = await refuse({ query: 'x', rerank: { tool_id: 'tool_x' } })
      assert.deepEqual([unknown.code, unknown.meta], ['TOOL_NOT_FOUND', { id: 'tool_x' }])
      const error = await refuse({ query: 'x', rerank: { tool_id: 'tool_x' } }, 400, app.admin)
      assert.equal(error.meta.problems[0].path, 'project_id')
    })
  })

  describe('what stays out', () => {
    it('never shows withdrawn, unfinished, failed or deleted documents, nor hidden messages', async () => {
      const kept = await write({ content: 'pelican kept' })
      const withdrawn = await write({ content: 'pelican withdrawn' })
      const deleted = await write({ content: 'pelican deleted' })
      await project.key.post(`/documents/${withdrawn.id}/withdraw`, {})
      await project.key.delete(`/documents/${deleted.id}`)
      const others = []
      for (const [status, kind] of [
        ['pending', 'document'],
        ['processing', 'document'],
        ['failed', 'document'],
        ['ready', 'message'],
      ]) {
        const other = await write({ content: `pelican ${status} ${kind}` })
        // As a worker leaves it between its batches, and as the platform writes messages.
        await app.rows('update documents set status = $1, kind = $2 where id = $3', [status, kind, other.id])
        others.push(other.id)
      }
      for (const body of [
        { query: 'pelican' },
        { query: 'pelican', tags: {} },
        { query: 'pelican', document_paths: '/' },
        { document_paths: '/' },
        { document_ids: others.concat(kept.id) },
        { query: 'pelican', document_ids: others.concat(kept.id) },
      ])
        assert.deepEqual(
          (await search(body)).results.map(({ document_id }) => document_id),
          [kept.id],
          JSON.stringify(body),
        )
    })
    it('does not let the chunks of unfinished documents take the places of others', async () => {
      const content = Array.from({ length: 60 }, () => 'puffin zzzz').join(' ')
      const busy = await write({ content, chunk_strategy: 'size', chunk_size: 12, chunk_overlap: 0 })
      await write({ content: 'a puffin in a longer text about other things entirely' })
      await app.rows(`update documents set status = 'processing' where id = $1`, [busy.id])
      assert.equal((await search({ query: 'puffin zzzz', limit: 1 })).results.length, 1)
    })
    it('finds a document in the first search after its 201, and its current text after every change', async () => {
      const made = await write({ content: 'first text about a lynx' })
      assert.equal((await search({ query: 'lynx' })).results.length, 1)
      await project.key.patch(`/documents/${made.id}`, { content: 'second text about a marten' })
      assert.deepEqual(
        (await search({ query: '"lynx"' })).results.filter(({ signals }) => signals.lexical),
        [],
      )
      assert.equal((await search({ query: 'marten' })).results[0].content, 'second text about a marten')
    })
    it('never shows another project, in three hundred random queries', async () => {
      const other = await app.project()
      const words = ['falcon', 'kite', 'osprey', 'buzzard', 'harrier', 'merlin', 'hobby', 'eagle']
      for (const [index, word] of words.entries()) {
        await write({ content: `${word} here ${index}` })
        await write({ content: `${word} there ${index} ${word}` }, other.key)
      }
      const pick = () => words[Math.floor(Math.random() * words.length)]
      for (let round = 0; round < 15; round++) {
        await Promise.all(
          Array.from({ length: 20 }, async () => {
            const { results } = await search({ query: `${pick()} ${pick()} there`, limit: 100 })
            assert.equal(results.length, 8)
            for (const { project_id } of results) assert.equal(project_id, project.id)
          }),
        )
      }
      const document = (await search({ query: 'eagle' }, other.key)).results[0].document_id
      assert.deepEqual((await search({ document_ids: [document] })).results, [])
      assert.deepEqual((await search({ query: 'eagle', document_ids: [document] })).results, [])
    })
  })

  describe('during writes', () => {
    it('never shows another project while both are written to, and finds every own document once it is there', async () => {
      const other = await app.project()
      const sides = [
        { ...project, word: 'mine' },
        { ...other, word: 'theirs' },
      ]
      await Promise.all(
        sides.flatMap(({ id, key, word }) =>
          Array.from({ length: 4 }, async (_, writer) => {
            for (let round = 0; round < 8; round++) {
              const made = await write({ content: `grebe ${word} ${writer} ${round}` }, key)
              const { results } = await search({ query: `grebe ${writer} ${round}`, limit: 100 }, key)
              assert.ok(results.some(({ document_id }) => document_id === made.id))
              for (const { project_id, content } of results) {
                assert.equal(project_id, id)
                assert.match(content, new RegExp(`^grebe ${word} `))
              }
              if (round % 3 === 0) assert.equal((await key.delete(`/documents/${made.id}`)).status, 204)
            }
          }),
        ),
      )
      for (const { key } of sides) assert.equal((await search({ query: 'grebe', limit: 100 }, key)).results.length, 20)
    })
  })

  describe('who may search', () => {
    it('shows a caller the permitted rows alone, and fills the list with them', async () => {
      for (let index = 0; index < 30; index++) {
        await write({ content: `stork report ${index}`, path: `/public/${index}.txt` })
        await write({ content: 'stork report stork report', path: `/secret/${index}.txt` })
      }
      const user = await searcher([`srn:${project.id}:document:/public/*`])
      for (const limit of [10, 100]) {
        const { results } = await search({ query: 'stork report', project_id: project.id, limit }, user)
        assert.equal(results.length, Math.min(limit, 30))
        for (const { path } of results) assert.match(path, /^\/public\//)
      }
      assert.equal((await search({ document_paths: '/', project_id: project.id, limit: 100 }, user)).results.length, 30)
      assert.deepEqual((await search({ document_paths: '/secret', project_id: project.id }, user)).results, [])
      assert.deepEqual(
        (await search({ query: 'stork', document_paths: '/secret', project_id: project.id }, user)).results,
        [],
      )
    })
    it('does not let hidden rows change what permitted ones score', async () => {
      for (let index = 0; index < 5; index++)
        await write({ content: `crane ${index} nest`, path: `/public/${index}.txt` })
      const user = await searcher([`srn:${project.id}:document:/public/*`])
      const ask = async () => (await search({ query: 'crane nest gull', project_id: project.id }, user)).results
      const before = await ask()
      for (let index = 0; index < 40; index++)
        await write({ content: `gull crane nest ${index}`, path: `/secret/${index}` })
      assert.deepEqual(await ask(), before)
    })
    it('honours denials, ids and tags of policies', async () => {
      const [a, b] = [await write({ content: 'ibex a', tags: { level: 'open' } }), await write({ content: 'ibex b' })]
      const found = async (documents: object[]) => {
        const user = await app.user(undefined, documents)
        return (await search({ query: 'ibex', project_id: project.id }, user)).results.map(
          ({ document_id }) => document_id,
        )
      }
      const everything = { effect: 'Allow', action: ['knowledge:SearchKnowledge'], resource: [`srn:${project.id}:*:*`] }
      const deny = { effect: 'Deny', action: ['knowledge:*'], resource: [`srn:${project.id}:document:${a.id}`] }
      assert.deepEqual(await found([{ statement: [everything, deny] }]), [b.id])
      assert.deepEqual(await found([allow([`srn:${project.id}:document:${a.id}`])]), [a.id])
      const open = { ...everything, condition: { StringEquals: { 'svc:ResourceTag/level': 'open' } } }
      assert.deepEqual(await found([{ statement: [open] }]), [a.id])
    })
    it('refuses who may not search in the project, and answers an empty list to who may and sees nothing', async () => {
      await write({ content: 'tern' })
      const other = await app.project()
      const reader = await app.user(undefined, [allow([`srn:${project.id}:document:*`], ['documents:*'])])
      assert.equal((await refuse({ query: 'tern', project_id: project.id }, 403, reader)).code, 'FORBIDDEN')
      const elsewhere = await searcher([`srn:${other.id}:document:*`])
      assert.equal((await refuse({ query: 'tern', project_id: project.id }, 403, elsewhere)).code, 'FORBIDDEN')
      const nothing = await searcher([`srn:${project.id}:document:/nowhere/*`])
      assert.deepEqual((await search({ query: 'tern', project_id: project.id }, nothing)).results, [])
      const scope = await refuse({ query: 'tern', project_id: other.id }, 403)
      assert.equal(scope.code, 'API_KEY_PROJECT_SCOPE')
      const missing = 'proj_00000000000000000000000000'
      assert.equal((await refuse({ query: 'tern', project_id: missing }, 404, app.admin)).code, 'RESOURCE_NOT_FOUND')
    })
    it('searches every project of the caller, each by the permissions in it', async function () {
      // With cells, searches require a project.
      if (app.home.cells) this.skip()
      const other = await app.project()
      const hidden = await app.project()
      await write({ content: 'avocet one', path: '/public/1' })
      await write({ content: 'avocet two', path: '/secret/2' })
      await write({ content: 'avocet three' }, other.key)
      await write({ content: 'avocet four' }, hidden.key)
      const user = await searcher([`srn:${project.id}:document:/public/*`, `srn:${other.id}:document:*`])
      const contents = async (body: object, by: Client) =>
        (await search(body, by)).results.map(({ content }) => content).sort()
      assert.deepEqual(await contents({ query: 'avocet' }, user), ['avocet one', 'avocet three'])
      assert.deepEqual(await contents({ document_paths: '/' }, user), ['avocet one', 'avocet three'])
      const everything = (await search({ query: 'avocet', limit: 100 }, app.admin)).results
        .filter(({ signals }) => signals.lexical)
        .map(({ content }) => content)
        .sort()
      assert.deepEqual(everything, ['avocet four', 'avocet one', 'avocet three', 'avocet two'])
      assert.equal((await refuse({ query: 'avocet' }, 403, await app.user())).code, 'FORBIDDEN')
    })
    it('is audited as a read', async () => {
      await search({ query: 'quail' })
      const entries = await app.rows(
        `select 1 from audit_entries where action = 'knowledge:SearchKnowledge' and status = 200`,
      )
      assert.equal(entries.length, 0)
    })
  })

  describe('load', () => {
    it('answers fifty searches during fifty new documents, with readable documents in every answer', async () => {
      const answers = await Promise.all(
        Array.from({ length: 100 }, (_, index) =>
          index % 2
            ? project.key.post('/documents', { content: `plover ${index}` })
            : project.key.post('/knowledge/search', { query: 'plover' }),
        ),
      )
      for (const [index, { status, body }] of answers.entries()) {
        assert.equal(status, index % 2 ? 201 : 200, JSON.stringify(body))
        if (index % 2 === 0) {
          assert.deepEqual(body.degraded_channels, [])
          for (const { document_id } of body.results)
            assert.equal((await project.key.get(`/documents/${document_id}`)).status, 200)
        }
      }
    })
    it('queries the database ten times, in three turns', async () => {
      for (let index = 0; index < 12; index++) await write({ content: `dunlin ${index}` })
      await search({ query: 'dunlin' })
      app.statements.length = 0
      await search({ query: 'dunlin' })
      const texts = app.statements.map(text => text.trim().toLowerCase())
      const settings = texts.filter(text => text.includes('set_config'))
      assert.equal(settings.length, 2)
      // Each channel: begin, its settings, commit; two reads of vectors, one of words. Then the records.
      assert.ok(texts.length <= 10, texts.join('\n---\n'))
    })
  })
})
