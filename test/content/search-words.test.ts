import { strict as assert } from 'node:assert'
import { adoptSettings } from '#content/index/embeddings/settings-owner.ts'
import { foldWord, normalizeText, wordsOf } from '#content/index/words/fold.ts'
import { indexText } from '#content/index/words/index-text.ts'
import { chunkWords, rebuildWords } from '#content/index/words/rebuild.ts'
import { sql } from '#core/db/sql.ts'
import { RequeueError } from '#core/work/handler.ts'
import { toolKind } from '#execution/tools/model.ts'
import { state } from '../memory/support.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { ingested, refuses, upload } from './ingestion-support.ts'

const write = async (key: Client, content: string): Promise<string> =>
  (await createdBy(key, '/documents', { content })).id

/** Texts found by words, best first. */
const found = async (key: Client, query: string, limit = 10): Promise<string[]> => {
  const { status, body } = await key.post('/knowledge/search', { query, limit })
  assert.deepEqual([status, body.degraded_channels], [200, ['vector']], JSON.stringify(body))
  return body.results.map(({ content }: { content: string }) => content)
}

describe('words of a text', () => {
  const texts = (text: string) => wordsOf(normalizeText(text)).map(word => word.text)

  it('are in NFKC, without invisible characters, and joined across lines', () => {
    assert.deepEqual(texts('ﬁle ＡＢＣ１２ ｶﾀｶﾅ'), ['file', 'abc12', 'カタカナ'])
    assert.deepEqual(texts('co\u00adop\u200berate \ufeffde\u0301ja\u0300'), ['cooperate', 'déjà'])
    assert.deepEqual(texts('Kündi-\n  gungsfrist PPR-\n9087'), ['kündigungsfrist', 'ppr', '9087'])
  })
  it('have a form without accents, ligatures and vowel signs, if they have any', () => {
    const forms = {
      café: 'cafe',
      straße: 'strasse',
      œuvre: 'oeuvre',
      مُحَمَّد: 'محمد',
      أحمد: 'احمد',
      مسؤول: 'مسوول',
      ёлка: 'елка',
    }
    for (const [word, form] of Object.entries(forms)) assert.equal(foldWord(word), form)
    for (const word of ['plain', '退款', '번역', 'ไทย', 'हिन्दी']) assert.equal(foldWord(word), null)
  })
  it('are all indexed, however long a text without spaces is', () => {
    const sentence = '我们支持七天内无理由退款，'
    const indexed = indexText(sentence.repeat(1000)).split(' ')
    for (let at = 0; at < sentence.length - 2; at++) {
      const pair = sentence.slice(at, at + 2)
      assert.equal(indexed.filter(word => word === pair).length, 1000, pair)
    }
  })
  it('cost time linear in the text', () => {
    for (const part of ['a-\n', 'é ', 'ﷺ', '-', 'a.b', '退', 'ก็', 'x-'.repeat(5)]) {
      const time = (count: number) => {
        const text = part.repeat(count / part.length)
        const started = process.cpuUsage()
        indexText(text)
        return process.cpuUsage(started).user
      }
      time(20_000)
      assert.ok(time(200_000) < 2_000_000, JSON.stringify(part))
    }
  })
})

describe('search by words', () => {
  const app = forSuite(() => startApp({ workers: ['ingestion'] }))

  /** A project with these texts only. */
  const project = async (contents: readonly string[], settings: object = {}) => {
    const made = await app.project()
    if (Object.keys(settings).length > 0)
      assert.equal((await app.admin.patch(`/projects/${made.id}`, settings)).status, 200)
    for (const content of contents) await write(made.key, content)
    return made
  }

  it('finds a code with and without its hyphen, and by its number', async () => {
    const exact = 'Replace the pump PPR-9087 yearly.'
    const { key } = await project(['The pump PPR-1777 is discontinued.', exact, 'Order PPR9087X at the counter.'])
    for (const query of ['PPR 9087', 'ppr\u20119087', 'ppr-9087', '9087', 'PPR9087', '"PPR-9087"'])
      assert.equal((await found(key, query))[0], exact, query)
    const joined = await project(['The pump PPR9087 is new.'])
    assert.equal((await found(joined.key, 'PPR-9087')).length, 1)
  })
  it('finds parts of addresses, paths and file names', async () => {
    const texts = [
      'POST https://shop.example/api/v2/orders?draft=1 creates an order.',
      'Edit /etc/nginx/conf.d/default.conf and reload.',
      'See GET https://shop.example/api/v1/users for people.',
      'The report is in quarterly_report-2026.final.pdf today.',
    ]
    const { key } = await project(texts)
    const expected = {
      'api/v2/orders': 0,
      'default.conf': 1,
      orders: 0,
      'conf.d': 1,
      quarterly_report: 3,
      'final.pdf': 3,
      nginx: 1,
    }
    for (const [query, index] of Object.entries(expected))
      assert.equal((await found(key, query))[0], texts[index], query)
  })
  it('finds words with and without accents, the exact ones first', async () => {
    const pairs = [
      ['Das Mass der Dinge', 'Das Maß der Dinge', 'Mass', 'Maß'],
      ['a resume of the year and some more words about it', 'a résumé of it', 'resume', 'résumé'],
      ['her oeuvre is large', 'her œuvre is large', 'oeuvre', 'œuvre'],
      ['الاحمد هنا في البيت', 'الأحمد هنا في البيت', 'الاحمد', 'الأحمد'],
      ['كتاب جديد', 'كِتَاب جديد', 'كتاب', 'كِتَاب'],
    ]
    for (const [plain, marked, plainQuery, markedQuery] of pairs) {
      const { key } = await project([plain, marked])
      assert.deepEqual(await found(key, plainQuery), [plain, marked])
      assert.deepEqual(await found(key, markedQuery), [marked, plain])
    }
  })
  it('finds words however they are encoded, broken or wide', async () => {
    const texts = [
      'die Kündi\u00adgungs\u00adfrist gilt',
      'the coop\u200beration of both',
      'Verbindungs-\nfehler beheben',
      'Ｎｅｔｗｏｒｋ ｶｰﾄﾞ',
    ]
    const { key } = await project(texts)
    for (const [query, index] of [
      ['Ku\u0308ndigungsfrist', 0],
      ['cooperation', 1],
      ['Verbindungsfehler', 2],
      ['network', 3],
      ['カード', 3],
    ] as const)
      assert.equal((await found(key, query))[0], texts[index], query)
  })
  it('finds words of scripts without spaces', async () => {
    const texts = [
      '我们支持七天内无理由退款',
      '返金はお届け後三十日以内に行います',
      '문서의 번역을 요청하십시오',
      'สินค้าทุกชิ้นรับประกันสองปี',
      '猫が好き',
      'iPhone手机壳',
    ]
    const { key } = await project(texts)
    for (const [query, index] of [
      ['退款', 0],
      ['七天内无理由退款', 0],
      ['返金', 1],
      ['번역', 2],
      ['รับประกัน', 3],
      ['猫', 4],
      ['好', 4],
      ['手机 iphone', 5],
      ['"iphone 手机壳"', 5],
    ] as const)
      assert.deepEqual((await found(key, query)).slice(0, 1), [texts[index]], query)
    assert.deepEqual(await found(key, '退款 -无理由'), [])
    assert.deepEqual(await found(key, '"款退"'), [])
  })
  it('understands quotes, exclusions and alternatives as before', async () => {
    const { key } = await project(['red apples', 'green apples', 'apples are red', 'a green pear'])
    assert.deepEqual(await found(key, '"red apples"'), ['red apples'])
    assert.deepEqual(await found(key, 'apples -green'), ['red apples', 'apples are red'])
    assert.deepEqual((await found(key, 'pear or red')).sort(), ['a green pear', 'apples are red', 'red apples'])
    assert.deepEqual(await found(key, '-apples'), [])
    for (const query of ['***', "' \\ : & | ! ( ) <-> <3>", '"', '-', '-"', 'or', '퟿\f\t!']) await found(key, query)
  })
  it('applies to memories as to documents', async () => {
    const { key, id } = await project([])
    const store = (await key.post('/memory-stores', { name: 's', project_id: id })).body.id
    await state(key, store, '客户要求退款，订单 PPR-9087')
    for (const query of ['退款', '9087']) assert.equal((await found(key, query)).length, 1, query)
  })

  describe('in a language', () => {
    it('of the project finds inflected forms', async () => {
      const { id, key } = await project(['Die Kündigungsfristen betragen drei Monate.'], { search_language: 'german' })
      assert.equal((await found(key, 'Kündigungsfrist')).length, 1)
      assert.equal((await app.admin.get(`/projects/${id}`)).body.search_language, 'german')
    })
    it('that changes rebuilds the words of documents and memories, which are found meanwhile', async () => {
      const { id, key } = await project(['Die Kündigungsfristen betragen drei Monate.'])
      const store = (await key.post('/memory-stores', { name: 's', project_id: id })).body.id
      await state(key, store, 'Kunden fragen nach Verträgen')
      assert.deepEqual(await found(key, 'Kündigungsfrist'), [])
      assert.equal((await app.admin.patch(`/projects/${id}`, { search_language: 'german' })).status, 200)
      assert.equal((await found(key, 'Kündigungsfristen')).length, 1)
      await eventually(async () => (await found(key, 'Kündigungsfrist')).length === 1)
      await eventually(async () => (await found(key, 'Vertrag')).length === 1)
      assert.equal((await key.get('/embeddings/config')).body.reindex.pending_words, 0)
    })
    it('by script stems Russian and Arabic next to other words', async () => {
      const texts = ['Гарантия на чайники iPhone', 'ضمان المنتجات']
      const { key } = await project(texts, { search_language: 'auto' })
      assert.deepEqual(await found(key, 'чайник iphone'), [texts[0]])
      assert.deepEqual(await found(key, 'منتج'), [texts[1]])
    })
    it('of an ingestion rule takes precedence, and is kept when the text changes', async () => {
      const { id, key } = await project([], { search_language: 'german' })
      const tool = await toolKind.insert(app.pool, { project_id: id, name: 'converter', type: 'http' })
      const rule = { content_type_glob: 'text/*', tool_id: tool.id, search_language: 'english' }
      refuses(
        await key.post('/ingestion-rules', { ...rule, search_language: 'klingon' }),
        400,
        'INGESTION_RULE_VALIDATION_FAILED',
      )
      const made = await key.post('/ingestion-rules', rule)
      assert.equal(made.status, 201, JSON.stringify(made.body))
      const document = await ingested(key, await upload(key, 'running horses', { project_id: id }))
      assert.equal(document.status, 'ready', JSON.stringify(document.error))
      assert.equal((await found(key, 'horse run')).length, 1)
      assert.equal((await key.patch(`/documents/${document.id}`, { content: 'swimming horses' })).status, 200)
      assert.equal((await found(key, 'swim')).length, 1)
    })
    it('that the database does not have is refused', async () => {
      const { id } = await project([])
      const refused = await app.admin.patch(`/projects/${id}`, { search_language: 'klingon' })
      refuses(refused, 400, 'VALIDATION_FAILED', 'INVALID_VALUE')
      assert.equal(refused.body.error.meta.problems[0].path, 'search_language')
    })
  })

  it('rebuilds the words of projects in turn, and none again after a language was changed back', async () => {
    const own = await startApp({ workers: [] })
    const { pool } = own.services
    const setLanguage = (id: string, search_language: string) => own.admin.patch(`/projects/${id}`, { search_language })
    const tagsOf = async (id: string) => [
      ...(await pool.anyFirst(sql.unsafe`select distinct tsv_config from document_chunks where project_id = ${id}`)),
    ]
    /** Rebuilds some batches. */
    const rebuild = async (batches: number, services = own.services) => {
      let rest = batches
      const stopping = {
        get aborted() {
          return --rest === 0
        },
      } as AbortSignal
      const context = { stopping, log: own.services.log }
      await rebuildWords(services, chunkWords, context, Number.POSITIVE_INFINITY).catch(error => {
        if (!(error instanceof RequeueError)) throw error
      })
      return rest
    }
    try {
      await adoptSettings(own.services)
      const large = await own.project()
      const small = await own.project(undefined, large.id)
      for (const { key } of [large, small]) await write(key, 'Die Fristen')
      await pool.query(sql.unsafe`
        insert into document_chunks select (jsonb_populate_record(c, jsonb_build_object('id', c.id || n, 'chunk_index', n))).*
        from document_chunks c, generate_series(1, 450) n where c.project_id = ${large.id}`)
      for (const { id } of [large, small]) assert.equal((await setLanguage(id, 'german')).status, 200)
      await rebuild(2)
      assert.deepEqual(await tagsOf(small.id), ['german/2'])
      assert.equal((await tagsOf(large.id)).length, 2)
      await rebuild(1000)
      assert.deepEqual(await tagsOf(large.id), ['german/2'])

      // The language is changed back after the outdated projects were read.
      assert.equal((await setLanguage(large.id, 'french')).status, 200)
      const any: typeof pool.any = async query => {
        const rows = await pool.any(query)
        await setLanguage(large.id, 'german')
        return rows
      }
      assert.ok((await rebuild(10, { ...own.services, pool: { ...pool, any } })) > 7)
    } finally {
      await own.close()
    }
  })

  it('finds texts whose words have an earlier format, and rebuilds them', async () => {
    const texts = ['Order the running PPR-9087', '我们支持七天内无理由退款']
    const { id, key } = await project(texts)
    const { pool } = app
    await pool.query(sql.unsafe`
      update document_chunks set tsv = to_tsvector('simple', content) || array_to_tsvector(array['~p' || project_id]), tsv_config = 'simple'
      where project_id = ${id}`)
    const { key: fresh } = await project([])
    await found(fresh, 'x')
    // Caches hold languages for half a minute.
    const other = await startApp({ databaseUrl: app.databaseUrl })
    try {
      const early = other.as(key.token)
      assert.equal((await early.get('/embeddings/config')).body.reindex.pending_words, 2)
      for (const query of ['PPR-9087', 'running order', 'order -running or ppr-9087', texts[1]])
        assert.equal((await found(early, query)).length, 1, query)
      assert.deepEqual(await found(early, '退款'), [])
      const worker = await startApp({ databaseUrl: app.databaseUrl, workers: ['ingestion'] })
      try {
        await eventually(async () => (await found(early, '退款')).length === 1)
        assert.equal((await early.get('/embeddings/config')).body.reindex.pending_words, 0)
        await eventually(() => [...app.logs, ...worker.logs].some(line => line.includes('search words rebuilt')))
      } finally {
        await worker.close()
      }
    } finally {
      await other.close()
    }
  })
})
