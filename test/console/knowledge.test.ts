import assert from 'node:assert/strict'
import fs from 'node:fs'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import { consoleSuite, go, HOSTILE, openConsole, pressEnter, tabTo } from './support.ts'

/** A picture of one pixel. */
const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
)
const SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'

describe('knowledge in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'ingestion'])
  const { at, open, heading } = suite
  const project = () => suite.app.projectId

  /** Sends a request of the admin and returns the record. */
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const read = async (path: string) => (await suite.app.admin.get(path)).body
  const file = async (filename: string, content: string | Buffer, fields: object = {}) =>
    post('/files/upload/base64', {
      project_id: project(),
      filename,
      content: Buffer.from(content as string).toString('base64'),
      ...fields,
    })
  const document = async (path: string, content: string, fields: object = {}) =>
    post('/documents', { project_id: project(), path, content, ...fields })
  const store = async (name: string) => post('/memory-stores', { project_id: project(), name })
  const fact = async (storeId: string, content: string, fields: object = {}) =>
    post('/memory-entries', { project_id: project(), memory_store_id: storeId, content, ...fields })

  it('uploads files by choice and by drop, ingests them, and opens their folders', async () => {
    const { page, problems } = await open('files?folder=/inbox')
    await page.getByLabel('Ingest them too').check()
    const [chooser] = await Promise.all([
      page.waitForEvent('filechooser'),
      page.getByRole('button', { name: 'Choose files' }).click(),
    ])
    const texts = ['Kettles are repaired in Oslo.', 'Toasters are repaired in Bergen.']
    await chooser.setFiles(
      texts.map((text, index) => ({ name: `repair-${index}.txt`, mimeType: 'text/plain', buffer: Buffer.from(text) })),
    )
    const uploads = page.getByRole('region', { name: 'Uploads' })
    await uploads.getByText('Uploaded').nth(1).waitFor()
    const data = await page.evaluateHandle(`(() => {
      const data = new DataTransfer()
      data.items.add(new File(['dropped'], 'dropped.txt', { type: 'text/plain' }))
      return data
    })()`)
    await page.getByRole('region', { name: 'Upload', exact: true }).dispatchEvent('drop', { dataTransfer: data })
    await uploads.getByText('Uploaded').nth(2).waitFor()
    const list = page.getByRole('table', { name: 'Files' })
    await list.getByRole('link', { name: 'dropped.txt' }).waitFor()
    await page.getByRole('link', { name: 'All files' }).click()
    await list.getByRole('link', { name: 'inbox' }).waitFor()
    assert.equal(await list.getByRole('link', { name: 'dropped.txt' }).count(), 0)
    // A folder is opened with the keyboard.
    await pressEnter(list.getByRole('link', { name: 'inbox' }))
    await list.getByRole('link', { name: 'repair-1.txt' }).waitFor()
    await go(page, at('documents?folder=/inbox'))
    await page.getByText('Ready').nth(2).waitFor()
    const { data: documents } = await read(`/documents?project_id=${project()}&path_prefix=/inbox`)
    assert.deepEqual(documents.map(({ path }: { path: string }) => path).toSorted(), [
      '/inbox/dropped.txt',
      '/inbox/repair-0.txt',
      '/inbox/repair-1.txt',
    ])
    assert.deepEqual(problems, [])
  })

  it('shows how far an upload is, stops it, says why one failed, and sends it again', async () => {
    const taken = await file('taken.txt', 'first', { prefix: '/uploads' })
    const { page, problems } = await open('files?folder=/uploads')
    await page.getByRole('link', { name: 'taken.txt' }).waitFor()
    const network = await page.context().newCDPSession(page)
    const limit = (bytes: number) =>
      network.send('Network.emulateNetworkConditions', {
        offline: false,
        latency: 0,
        downloadThroughput: -1,
        uploadThroughput: bytes,
      })
    await network.send('Network.enable')
    await limit(150_000)
    const choose = async (name: string, buffer: Buffer) => {
      const [chooser] = await Promise.all([
        page.waitForEvent('filechooser'),
        page.getByRole('button', { name: 'Choose files' }).press('Enter'),
      ])
      await chooser.setFiles({ name, mimeType: 'text/plain', buffer })
    }
    await choose('slow.txt', Buffer.alloc(1_500_000, 'x'))
    const bar = page.getByRole('progressbar', { name: 'slow.txt' })
    await eventually(async () => {
      const percent = Number(await bar.getAttribute('aria-valuenow'))
      return percent > 0 && percent < 100
    })
    await page.getByRole('button', { name: 'Stop slow.txt' }).press('Enter')
    const uploads = page.getByRole('region', { name: 'Uploads' })
    await uploads.getByText('Stopped').waitFor()
    await limit(-1)
    await choose('taken.txt', Buffer.from('second'))
    await uploads.getByText('Failed').waitFor()
    assert.equal((await suite.app.admin.delete(`/files/${taken.id}`)).status, 204)
    await uploads.getByRole('button', { name: 'Upload taken.txt again' }).press('Enter')
    await uploads.getByText('Uploaded').waitFor()
    const { data } = await read(`/files?project_id=${project()}&path_prefix=/uploads`)
    assert.deepEqual(
      data.map(({ filename, size }: { filename: string; size: number }) => [filename, size]),
      [['taken.txt', 6]],
    )
    // The refusal of the second upload is what the browser reports.
    assert.deepEqual(problems, ['Failed to load resource: the server responded with a status of 409 (Conflict)'])
  })

  it('draws images by their content only, shows markup as its source, and downloads as an attachment', async () => {
    const picture = await file('picture.png', PNG)
    const disguised = await file('disguised.png', SVG)
    const page_ = await file('page.html', '<h1>title</h1><script>alert(1)</script>')
    const { page, problems } = await open(`files/${picture.id}`)
    const preview = page.getByRole('region', { name: 'Preview' }).first()
    const image = preview.getByRole('img', { name: 'picture.png' })
    await image.waitFor()
    assert.match((await image.getAttribute('src')) ?? '', /^blob:/)
    await eventually(async () => (await page.evaluate('document.querySelector("main img").naturalWidth')) === 1)
    for (const { id, filename } of [disguised, page_]) {
      await go(page, at(`files/${id}`))
      await heading(page, filename)
      await preview.getByText('<script>alert(1)</script>').waitFor()
      assert.equal(await page.locator('main img, main svg script, main iframe').count(), 0)
    }
    const [chooser] = await Promise.all([
      page.waitForEvent('filechooser'),
      page.getByRole('button', { name: 'Replace content' }).press('Enter'),
    ])
    await chooser.setFiles({ name: 'page.html', mimeType: 'text/html', buffer: Buffer.from('<h1>replaced</h1>') })
    await preview.getByText('<h1>replaced</h1>').waitFor()
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name: 'Download' }).first().click(),
    ])
    assert.equal(download.suggestedFilename(), 'page.html')
    assert.equal(fs.readFileSync(await download.path(), 'utf8'), '<h1>replaced</h1>')
    assert.deepEqual(problems, [])
  })

  it('shows why an ingestion failed, ingests again with the keyboard, and edits, restores and withdraws', async () => {
    const broken = await file('broken.pdf', 'no document at all')
    const { id } = await post('/documents/ingest?wait=true', { project_id: project(), file_id: broken.id })
    const { page, problems } = await open(`documents/${id}`)
    await page.getByRole('alert').getByText('PDF_PARSE_FAILED').waitFor()
    const text = await document('/help/hours.txt', 'Open from nine to five.', { title: 'Hours' })
    await go(page, at(`documents/${text.id}`))
    await page.getByText('Open from nine to five.').waitFor()
    await tabTo(page, 'Ingest again')
    await page.keyboard.press('Enter')
    const dialog = page.getByRole('dialog', { name: 'Ingest again' })
    await dialog.getByLabel('Chunk size').fill('10')
    await dialog.getByLabel('Chunk overlap').fill('0')
    await dialog.getByRole('combobox', { name: 'Chunk strategy' }).click()
    await page.getByRole('option', { name: 'size' }).click()
    await dialog.getByRole('button', { name: 'Ingest again' }).press('Enter')
    await page.getByRole('tab', { name: 'Chunks (3)' }).click()
    await page.getByText('Chunk 3').waitFor()
    await page.getByRole('button', { name: 'Edit' }).click()
    const form = page.getByRole('dialog', { name: 'Edit' })
    await form.getByLabel('Content').fill('Open from ten to four.')
    await form.getByRole('button', { name: 'Save' }).click()
    await form.waitFor({ state: 'hidden' })
    await page.getByRole('tab', { name: 'Versions' }).click()
    await page.getByRole('row').filter({ hasText: 'Version 1' }).getByRole('button', { name: 'Restore' }).click()
    await eventually(async () => (await read(`/documents/${text.id}`)).content === 'Open from nine to five.')
    await page.getByRole('tab', { name: 'Record' }).click()
    await page.getByRole('button', { name: 'Withdraw' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Withdraw' }).click()
    await page.getByText('This document is withdrawn').waitFor()
    assert.equal((await read(`/documents/${text.id}`)).status, 'withdrawn')
    assert.deepEqual(problems, [])
  })

  it('searches with the keyboard, explains the hits, compares two settings, and saves a dataset item', async () => {
    await document('/shop/kettle.txt', 'The kettle KX-100 costs 40 euros.')
    await document('/shop/spares.txt', 'Spare lids of kettles are free.')
    const { page, problems } = await open('search')
    await heading(page, 'Search')
    await tabTo(page, 'Question or words')
    await page.keyboard.type('kettle KX-100')
    await page.keyboard.press('Enter')
    const hit = page.getByRole('article', { name: 'Hit 1: kettle.txt' })
    await hit.getByText('By words: 1').waitFor()
    await hit.getByText('By meaning: 1').waitFor()
    assert.deepEqual(await hit.locator('mark').allInnerTexts(), ['kettle', 'KX', '100'])
    await hit.getByRole('button', { name: 'Open chunk' }).press('Enter')
    await page.getByRole('dialog', { name: 'kettle.txt' }).getByText('Characters 0 to 33').waitFor()
    await page.keyboard.press('Escape')
    await page.getByRole('button', { name: 'Compare settings' }).press('Enter')
    await page.getByRole('button', { name: 'First settings' }).press('Enter')
    const settings = page.getByRole('dialog', { name: 'First settings' })
    await settings.getByLabel('Number of results').fill('1')
    await page.keyboard.press('Enter')
    const second = page.getByRole('region', { name: 'Second settings' })
    await second.getByText('Missing with the other settings: after the last of 1 hits.').first().waitFor()
    await second.getByText('Rank 1 in both').waitFor()
    await page.waitForURL(/a=%7B%22limit%22%3A1%7D/)
    await second.getByRole('article').first().getByRole('button', { name: 'Save as dataset item' }).click()
    const dialog = page.getByRole('dialog', { name: 'Save as dataset item' })
    await dialog.getByLabel('Name of a new dataset').fill('Questions')
    await dialog.getByRole('button', { name: 'Save' }).click()
    await page.getByText('The item was saved').waitFor()
    const { data: datasets } = await read(`/datasets?project_id=${project()}`)
    const { data: items } = await read(`/datasets/${datasets[0].id}/items`)
    assert.deepEqual(
      items.map(({ input, expected_output }: { input: object; expected_output: string }) => [input, expected_output]),
      [[[{ role: 'user', content: 'kettle KX-100' }], 'The kettle KX-100 costs 40 euros.']],
    )
    assert.deepEqual(problems, [])
  })

  it('checks a fact before it writes it, shows the replaced memory, corrects and invalidates', async () => {
    const { id } = await store('Customers')
    const { memory_id: first } = await fact(id, 'Ada takes her tea without milk')
    const { page, problems } = await open(`memory/${id}`)
    await page.getByRole('link', { name: 'Ada takes her tea without milk' }).waitFor()
    await tabTo(page, 'Add fact')
    await page.keyboard.press('Enter')
    const dialog = page.getByRole('dialog', { name: 'Add fact' })
    await dialog.getByLabel('Content').waitFor()
    await page.keyboard.type('Ada takes her tea with oat milk')
    await tabTo(page, 'Supersedes')
    await page.keyboard.type(first)
    await page.keyboard.press('Enter')
    await dialog.getByText('This replaces an earlier fact').waitFor()
    assert.equal((await read(`/memories?memory_store_id=${id}`)).total, 1, 'nothing is written by the check')
    await tabTo(page, 'Write fact')
    await page.keyboard.press('Enter')
    await page.getByRole('link', { name: 'Ada takes her tea with oat milk' }).click()
    const history = page.getByRole('region', { name: 'History' })
    await history.getByRole('link', { name: 'Ada takes her tea without milk' }).waitFor()
    await history.getByText('Superseded').waitFor()
    await page.getByRole('button', { name: 'Correct' }).click()
    await page.getByRole('dialog').getByLabel('Content').fill('Ada takes her tea with soy milk')
    await page.getByRole('dialog').getByRole('button', { name: 'Save' }).click()
    await page.getByRole('region', { name: 'Record' }).getByText('with soy milk').waitFor()
    await page.getByRole('button', { name: 'Invalidate' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Invalidate' }).click()
    await page.getByText('Invalidated').first().waitFor()
    assert.equal((await read(`/memories?memory_store_id=${id}`)).total, 0)
    await go(page, at(`memory/${id}?all=true`))
    await heading(page, 'Customers')
    await page.getByText('Superseded').waitFor()
    await go(page, at(`memory/${id}?tab=ledger`))
    await page.getByText('Corrected').waitFor()
    assert.deepEqual(problems, [])
  })

  it('finds conversations, documents and stores by a tag', async () => {
    const tags = { team: 'desk' }
    await post('/conversations', { project_id: project(), name: 'Tagged thread', tags })
    await document('/tagged/one.txt', 'one', { tags })
    await document('/tagged/two.txt', 'two')
    await post('/memory-stores', { project_id: project(), name: 'Tagged store', tags })
    const { page, problems } = await open('start')
    for (const [view, title, name] of [
      ['conversations', 'Conversations', 'Tagged thread'],
      ['documents', 'Documents', 'one.txt'],
      ['memory', 'Memory', 'Tagged store'],
    ] as const) {
      await go(page, at(view))
      await heading(page, title)
      await page.getByLabel('Tag, such as team=desk').fill('team=desk')
      await page.getByRole('link', { name }).waitFor()
      await eventually(async () => (await page.getByRole('table').locator('tbody tr').count()) === 1)
      await page.getByLabel('Tag, such as team=desk').fill('team=none')
      await page.getByText('Nothing matches the filters').waitFor()
    }
    assert.deepEqual(problems, [])
  })

  it('has no violation of WCAG 2.2 AA in any view, and no sideways scrolling on a phone', async () => {
    const picture = await file('access.png', PNG)
    const text = await document('/access/text.txt', 'A text about kettles. '.repeat(60), { chunk_strategy: 'size' })
    const { id: storeId } = await store('Access')
    const { memory_id: first } = await fact(storeId, 'The shop closes at six')
    const { memory_id: memoryId } = await fact(storeId, 'The shop closes at seven', { supersedes: first })
    await suite.checkAccess([
      ['files', 'Files'],
      [`files/${picture.id}`, 'access.png'],
      ['documents', 'Documents'],
      [`documents/${text.id}`, 'text.txt'],
      [`documents/${text.id}?tab=chunks`, 'text.txt'],
      [`documents/${text.id}?tab=versions`, 'text.txt'],
      ['search?q=kettles&b=%7B%22limit%22%3A1%7D', 'Search'],
      ['memory', 'Memory'],
      [`memory/${storeId}?all=true`, 'Access'],
      [`memory/${storeId}?tab=ledger`, 'Access'],
      [`memory/${storeId}?tab=rules`, 'Access'],
      [`memory/${storeId}/${memoryId}`, 'Fact'],
    ])
  })

  it('shows hostile text as text', async () => {
    const name = HOSTILE.replaceAll('/', '')
    const { id: fileId } = await file(name, `text ${HOSTILE}`, { tags: { [name.slice(0, 100)]: HOSTILE } })
    const text = await post('/documents', {
      project_id: project(),
      path: `/hostile/${name}`,
      title: HOSTILE,
      content: `hostile words ${HOSTILE}`,
      metadata: { [HOSTILE]: HOSTILE },
    })
    const { id: storeId } = await post('/memory-stores', { project_id: project(), name: HOSTILE, description: HOSTILE })
    const { memory_id } = await fact(storeId, HOSTILE)
    await suite.checkHostileText([
      'files',
      `files/${fileId}`,
      'documents',
      `documents/${text.id}`,
      `documents/${text.id}?tab=chunks`,
      `documents/${text.id}?tab=record`,
      'search?q=hostile%20words',
      'memory',
      `memory/${storeId}`,
      `memory/${storeId}/${memory_id}`,
    ])
  })

  it('offers what a reader may do, and requests nothing else', async () => {
    const text = await document('/read/only.txt', 'Only to read')
    const reader = ['projects:GetProject', 'files:GetFile', 'documents:ListDocuments', 'documents:GetDocument']
    await suite.app.user('rita', [allowing(project(), reader)])
    const watched = await openConsole(suite.chromium, suite.app, at('documents'), 'rita')
    suite.closeLater(watched)
    const { page } = watched
    const requested: string[] = []
    page.on('request', request => requested.push(new URL(request.url()).pathname))
    await page.getByRole('link', { name: 'only.txt' }).click()
    await page.getByText('Only to read').waitFor()
    for (const name of ['Edit', 'Ingest again', 'New document'])
      assert.equal(await page.getByRole('button', { name }).count(), 0, name)
    await page.getByRole('tab', { name: 'Record' }).click()
    await page.getByRole('link', { name: 'only.txt' }).click()
    await page.getByText('SHA-256').waitFor()
    assert.equal(await page.getByRole('button', { name: /Download|Delete|Rename/ }).count(), 0)
    assert.deepEqual(
      requested.filter(path => path.includes('/download')),
      [],
    )
    for (const [view, action] of [
      ['search', 'knowledge:SearchKnowledge'],
      ['memory', 'memories:ListMemoryStores'],
      ['tools', 'tools:ListTools'],
      ['guardrails', 'guardrails:ListGuardrails'],
      ['conversations', 'conversations:ListConversations'],
    ] as const) {
      await go(page, at(view))
      await page.getByText(action).waitFor()
    }
    assert.deepEqual(
      requested.filter(path => /\/api\/v1\/(knowledge|memory-stores|tools|guardrails|conversations)/.test(path)),
      [],
    )
    assert.equal((await read(`/documents/${text.id}`)).status, 'ready')
  })
})
