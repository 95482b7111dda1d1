import assert from 'node:assert/strict'
import { voidStatement } from '#core/db/sql.ts'
import { cloneableNames } from '#identity/projects/clone.ts'
import { projectCopy } from '../../console/src/strings/improve.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import { choose, consoleSuite, focusOn, go, HOSTILE, openConsole, pressEnter, tabTo } from './support.ts'

describe('deciders, chats and model routes in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation'])
  const { at, open, heading, closeLater } = suite
  const project = () => suite.app.projectId
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const create = (path: string, body: object) => post(path, { project_id: project(), ...body })
  const read = async (path: string) => (await suite.app.admin.get(path)).body
  const urgent = { type: 'predicate', name: 'urgent', instructions: 'Is it urgent?' }
  /** A decider that is answered so. */
  const decider = async (lane: string, answers: object, fields: object = {}) => {
    await doubleClient(suite.app.double).put(lane, { rules: [{ reply: { text: JSON.stringify(answers) } }] })
    const agent = { name: lane, ai_provider_id: suite.app.providerId, model: `${lane}/m` }
    const { id: agent_id } = await create('/agents', agent)
    return create('/deciders', { name: lane, agent_id, questions: [urgent], ...fields })
  }
  const route = (fields: object = {}) =>
    create('/model-routes', {
      name: `route ${Math.random()}`,
      targets: [{ ai_provider_id: suite.app.providerId, model: 'double-1' }],
      ...fields,
    })

  it('create a decider with the keyboard, which answers an input', async () => {
    const reply = { urgent: true, team: 'billing' }
    await doubleClient(suite.app.double).put('mail', { rules: [{ reply: { text: JSON.stringify(reply) } }] })
    await create('/agents', { name: 'Sorter', ai_provider_id: suite.app.providerId, model: 'mail/m' })
    const { page, problems } = await open('deciders')
    await page.getByText('No decider yet').waitFor()
    await pressEnter(page.getByRole('button', { name: 'New decider' }).first())
    const form = page.getByRole('dialog', { name: 'New decider' })
    await form.getByLabel('Name').first().fill('mail')
    await focusOn(form.getByRole('combobox', { name: 'Agent', exact: true }))
    await choose(page, 'Sorter')
    await tabTo(page, 'Add question')
    await page.keyboard.press('Enter')
    const first = form.getByRole('group', { name: 'Question 1' })
    await first.getByRole('textbox', { name: 'Name' }).fill('urgent')
    await first.getByRole('textbox', { name: 'Question' }).fill('Does it need an answer today?')
    const second = form.getByRole('group', { name: 'Question 2' })
    await second.getByRole('textbox', { name: 'Name' }).fill('team')
    await second.getByRole('textbox', { name: 'Question' }).fill('Who handles it?')
    await focusOn(second.getByRole('combobox', { name: 'Answer' }))
    await choose(page, 'One of several options')
    for (const [index, value] of ['billing', 'support'].entries()) {
      const option = second.getByRole('group', { name: `Option ${index + 1}` })
      await option.getByLabel('Value').fill(value)
      await option.getByLabel('Meaning').fill(`About ${value}`)
    }
    await pressEnter(form.getByRole('button', { name: 'Move Question 2 up' }))
    await pressEnter(form.getByRole('button', { name: 'Create' }))
    await heading(page, 'mail')
    const [made] = (await read(`/deciders?project_id=${project()}`)).data
    assert.deepEqual(
      made.questions.map(({ name, type }: { name: string; type: string }) => [name, type]),
      [
        ['team', 'choice'],
        ['urgent', 'predicate'],
      ],
    )
    await page.getByText('About billing').waitFor()
    await pressEnter(page.getByRole('tab', { name: 'Try' }))
    await page.getByRole('textbox', { name: 'Input' }).fill('Where is my refund?')
    await pressEnter(page.getByRole('button', { name: 'Decide' }))
    await page.getByRole('row', { name: /^team Who handles it\? billing/ }).waitFor()
    await page.getByRole('row', { name: /^urgent Does it need an answer today\? Yes 100% probable/ }).waitFor()
    await pressEnter(page.getByRole('link', { name: 'Open the decision' }))
    await heading(page, 'Decision')
    await page.getByRole('row', { name: /^team Who handles it\? billing/ }).waitFor()
    await page.getByRole('link', { name: /^gen_/ }).waitFor()
    await go(page, at(`deciders/${made.id}?tab=decisions`))
    await page.getByText('The newest decision', { exact: true }).waitFor()
    await page.getByText('billing: 1 (100%)').waitFor()
    await page.getByText('team: billing').waitFor()
    assert.deepEqual(problems, [])
  })

  it('show both changes where two people edit a decider, its versions, and delete it', async () => {
    const { id } = await decider('edited', { urgent: false })
    const { page } = await open(`deciders/${id}`)
    await pressEnter(page.getByRole('button', { name: 'Edit' }))
    const form = page.getByRole('dialog', { name: 'Edit' })
    await form.getByRole('textbox', { name: 'Question' }).fill('Mine?')
    await suite.app.admin.patch(`/deciders/${id}`, { description: 'theirs' })
    await pressEnter(form.getByRole('button', { name: 'Save' }))
    const conflict = page.getByRole('dialog', { name: 'Another person has changed this record' })
    await conflict.getByText('"theirs"').waitFor()
    await pressEnter(conflict.getByRole('button', { name: 'Save mine' }))
    await form.waitFor({ state: 'hidden' })
    const changed = await read(`/deciders/${id}`)
    assert.deepEqual([changed.questions[0].instructions, changed.description, changed.version], ['Mine?', 'theirs', 2])
    await pressEnter(page.getByRole('tab', { name: 'Versions' }))
    await pressEnter(page.getByRole('button', { name: 'Restore' }))
    await page.getByText('Version 3').waitFor()
    assert.equal((await read(`/deciders/${id}`)).questions[0].instructions, 'Is it urgent?')
    await pressEnter(page.getByRole('button', { name: 'Delete' }))
    await pressEnter(page.getByRole('dialog', { name: 'Delete' }).getByRole('button', { name: 'Delete' }))
    await heading(page, 'Deciders')
    assert.equal((await suite.app.admin.get(`/deciders/${id}`)).status, 404)
  })

  it('show why a decision failed, and take JSON as input', async () => {
    const { id } = await decider('failing', { urgent: 'perhaps' })
    const { page, problems } = await open(`deciders/${id}?tab=try`)
    await focusOn(page.getByRole('radio', { name: 'Text' }))
    await page.keyboard.press('ArrowRight')
    await page.getByRole('textbox', { name: 'Input' }).fill('{"mail": ')
    await pressEnter(page.getByRole('button', { name: 'Decide' }))
    await page.getByText('This is not JSON').first().waitFor()
    await page.getByRole('textbox', { name: 'Input' }).fill('{"mail": 7}')
    await pressEnter(page.getByRole('button', { name: 'Decide' }))
    await page.getByText('OUTPUT_SCHEMA_VALIDATION_FAILED').waitFor()
    await go(page, at('deciders?tab=decisions&status=failed'))
    await page.getByRole('row', { name: /^dec_.* Failed/ }).waitFor()
    assert.deepEqual(problems, [])
  })

  it('create a chat, which answers with the messages before, and show how applications use it', async () => {
    const { page, problems } = await open('chats')
    await page.getByText('No chat yet').waitFor()
    await pressEnter(page.getByRole('button', { name: 'New chat' }).first())
    const form = page.getByRole('dialog', { name: 'New chat' })
    await form.getByLabel('Name').fill('translator')
    await focusOn(form.getByRole('combobox', { name: 'Provider' }))
    await choose(page, 'double')
    await tabTo(page, 'Instructions')
    await page.keyboard.type('Translate.')
    await pressEnter(form.getByRole('button', { name: 'Create' }))
    await heading(page, 'translator')
    const [chat] = (await read(`/chats?project_id=${project()}`)).data
    assert.deepEqual([chat.ai_provider_id, chat.instructions], [suite.app.providerId, 'Translate.'])
    await pressEnter(page.getByRole('tab', { name: 'Try' }))
    const log = page.getByRole('log', { name: 'Messages' })
    for (const [text, count] of [
      ['Good morning', 1],
      ['Good evening', 3],
    ] as const) {
      await focusOn(page.getByLabel('Message', { exact: true }))
      await page.keyboard.type(text)
      const [request] = await Promise.all([
        page.waitForRequest(each => each.url().endsWith('/chat/completions')),
        page.keyboard.press('Enter'),
      ])
      assert.equal(request.postDataJSON().messages.length, count)
      await log.getByText(`echo: ${text}`).waitFor()
    }
    await pressEnter(page.getByRole('tab', { name: 'Use in an application' }))
    const example = page.getByRole('region', { name: 'Example: curl' })
    const [, url, body] = /^curl '(\S+)'.* -d '(.*)'$/s.exec(await example.innerText()) as RegExpExecArray
    const key = await postedBy(suite.app.admin, '/project-keys', { project_id: project(), name: 'chat' })
    const answer = await fetch(url.replace(new URL(url).origin, suite.app.base), {
      method: 'POST',
      headers: { authorization: `Bearer ${key.secret ?? key.key}`, 'content-type': 'application/json' },
      body,
    })
    assert.equal(((await answer.json()) as any).choices[0].message.content, 'echo: Hello')
    assert.deepEqual(problems, [])
  })

  it('create a model route with targets in order, and show how its calls went', async () => {
    await doubleClient(suite.app.double).put('down', { rules: [{ reply: { error: { status: 503 } } }] })
    const { page, problems } = await open('model-routes')
    await page.getByText('No model route yet').waitFor()
    await pressEnter(page.getByRole('button', { name: 'New model route' }).first())
    const form = page.getByRole('dialog', { name: 'New model route' })
    await form.getByLabel('Name').fill('main')
    await focusOn(form.getByRole('combobox', { name: 'Next target after' }))
    for (const name of ['Model not found', 'Error of the vendor']) await choose(page, name)
    await page.keyboard.press('Tab')
    await pressEnter(form.getByRole('button', { name: 'Add target' }))
    for (const [index, model] of ['double-1', 'down/m'].entries()) {
      const target = form.getByRole('group', { name: `Target ${index + 1}` })
      await focusOn(target.getByRole('combobox', { name: 'Provider' }))
      await choose(page, 'double')
      await target.getByRole('textbox', { name: 'Model' }).fill(model)
    }
    await pressEnter(form.getByRole('button', { name: 'Move Target 2 up' }))
    await pressEnter(form.getByRole('button', { name: 'Create' }))
    await heading(page, 'main')
    const [made] = (await read(`/model-routes?project_id=${project()}`)).data
    assert.deepEqual(
      made.targets.map(({ model }: { model: string }) => model),
      ['down/m', 'double-1'],
    )
    await page.getByText('No agent uses it').waitFor()
    await pressEnter(page.getByRole('button', { name: 'Make default' }))
    await pressEnter(page.getByRole('dialog', { name: 'Make default' }).getByRole('button', { name: 'Make default' }))
    await page.getByRole('link', { name: 'Default of the project' }).waitFor()
    const { id: agent } = await create('/agents', { name: 'Routed', model_route_id: made.id })
    await post(`/agents/${agent}/generate?wait=true`, { prompt: 'hi' })
    await page.reload()
    await page.getByText('Of the newest turn with this route').waitFor()
    const outcomes = page.getByRole('table', { name: 'Outcomes' })
    await outcomes.getByRole('row', { name: /^double down\/m 0 Error of the vendor: 1/ }).waitFor()
    await outcomes.getByRole('row', { name: /^double double-1 1 None/ }).waitFor()
    await page.getByRole('row', { name: /^Routed Completed 1 double-1/ }).waitFor()
    await page.getByRole('link', { name: 'Routed' }).first().waitFor()
    assert.deepEqual(problems, [])
    await suite.app.admin.patch(`/projects/${project()}`, { default_model_route_id: null })
  })

  it('are found by Ctrl K by name and ID, and are absent without the permission', async () => {
    const { id } = await decider('found', { urgent: true })
    const decision = await post(`/deciders/${id}/decisions`, { input: 'x', wait: true })
    const { page, problems } = await open('start')
    await heading(page, 'Getting started')
    const palette = page.getByPlaceholder(/^View, project/)
    for (const [typed, title] of [
      ['decid', 'Deciders'],
      ['chats', 'Chats'],
      ['model rou', 'Model routes'],
      [id, 'found'],
      [decision.id, 'Decision'],
      [(await route({ name: 'by ID' })).id, 'by ID'],
    ]) {
      await page.keyboard.press('Control+k')
      await palette.fill(typed)
      await page.locator('[data-combobox-selected]').waitFor()
      await palette.press('Enter')
      await palette.waitFor({ state: 'hidden' })
      await heading(page, title)
    }
    assert.deepEqual(problems, [])
    await suite.app.user('bob', [allowing(project(), ['projects:*', 'deciders:List*', 'deciders:Get*'])])
    const watched = await openConsole(suite.chromium, suite.app, at('deciders'), 'bob')
    closeLater(watched)
    await watched.page.getByRole('link', { name: 'found' }).waitFor()
    assert.equal(await watched.page.getByRole('button', { name: 'New decider' }).count(), 0)
    assert.equal(await watched.page.getByRole('navigation').getByRole('link', { name: 'Chats' }).count(), 0)
    await go(watched.page, at(`deciders/${id}`))
    await heading(watched.page, 'found')
    assert.equal(await watched.page.getByRole('tab', { name: 'Try' }).count(), 0)
    assert.equal(await watched.page.getByRole('button', { name: 'Edit' }).count(), 0)
    for (const [view, action] of [
      ['chats', 'chats:ListChats'],
      ['model-routes', 'model-routes:ListModelRoutes'],
      ['chains', 'chains:ListChains'],
      ['feedback', 'sessions:ListFeedback'],
      ['ingestion-rules', 'ingestion-rules:ListIngestionRules'],
      ['metadata-schemas', 'metadata-schemas:ListMetadataSchemas'],
      ['copy', 'formations:ExportTemplate'],
    ]) {
      await go(watched.page, at(view))
      await watched.page.getByText(action).waitFor()
    }
  })

  it('show hostile text as text, and have no violation of WCAG 2.2 AA', async () => {
    const question = { ...urgent, instructions: HOSTILE }
    const { id: deciderId } = await decider(
      'hostile',
      { urgent: true },
      { description: HOSTILE, questions: [question] },
    )
    await post(`/deciders/${deciderId}/decisions`, { input: HOSTILE, wait: true, metadata: { note: HOSTILE } })
    const { data: decisions } = await read(`/decisions?decider_id=${deciderId}`)
    const chat = { name: HOSTILE, instructions: HOSTILE, ai_provider_id: suite.app.providerId }
    const { id: chatId } = await create('/chats', chat)
    const { id: routeId } = await route({ name: HOSTILE })
    await suite.checkHostileText([
      'deciders',
      `deciders/${deciderId}`,
      `deciders/${deciderId}/decisions/${decisions[0].id}`,
      'chats',
      `chats/${chatId}`,
      'model-routes',
      `model-routes/${routeId}`,
    ])
    const { id: plain } = await create('/chats', { name: 'plain', ai_provider_id: suite.app.providerId })
    const { id: plainRoute } = await route({ name: 'plain route' })
    await suite.checkAccess([
      ['deciders', 'Deciders'],
      ['deciders?tab=decisions', 'Deciders'],
      [`deciders/${deciderId}`, 'hostile'],
      [`deciders/${deciderId}?tab=try`, 'hostile'],
      [`deciders/${deciderId}?tab=decisions`, 'hostile'],
      [`deciders/${deciderId}/decisions/${decisions[0].id}`, 'Decision'],
      ['chats', 'Chats'],
      [`chats/${plain}`, 'plain'],
      [`chats/${plain}?tab=try`, 'plain'],
      [`chats/${plain}?tab=use`, 'plain'],
      ['model-routes', 'Model routes'],
      [`model-routes/${plainRoute}`, 'plain route'],
    ])
  })
})

describe('rules, feedback, chains and copies in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'ingestion'], { isAdmin: true })
  const { at, open, heading } = suite
  const project = () => suite.app.projectId
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const create = (path: string, body: object) => post(path, { project_id: project(), ...body })
  const read = async (path: string) => (await suite.app.admin.get(path)).body
  const file = (filename: string, prefix: string, content_type: string) =>
    create('/files/upload/base64', { filename, prefix, content_type, content: 'aGVsbG8=' })

  it('create an ingestion rule, find the rule for a file, and show the files that it matches', async () => {
    await file('label.png', '/labels', 'image/png')
    await file('other.png', '/labels/special', 'image/png')
    await file('note.txt', '/labels', 'text/plain')
    const { page, problems } = await open('ingestion-rules')
    await page.getByText('No ingestion rule yet').waitFor()
    await pressEnter(page.getByRole('button', { name: 'New ingestion rule' }).first())
    const form = page.getByRole('dialog', { name: 'New ingestion rule' })
    await form.getByLabel('Media type').fill('image/*')
    await form.getByLabel('Folder').fill('/labels')
    await focusOn(form.getByRole('combobox', { name: 'Agent', exact: true }))
    await choose(page, 'Helper')
    await pressEnter(form.getByRole('button', { name: 'Create' }))
    await heading(page, 'image/*')
    const [rule] = (await read(`/ingestion-rules?project_id=${project()}`)).data
    assert.deepEqual([rule.path_prefix, rule.agent_id], ['/labels', suite.app.agentId])
    const matching = page.getByRole('table', { name: 'Matching files' })
    await matching.getByRole('link', { name: '/labels/label.png' }).waitFor()
    assert.equal(await matching.getByRole('link').count(), 2)
    await create('/ingestion-rules', {
      content_type_glob: 'image/png',
      path_prefix: '/labels/special',
      agent_id: suite.app.agentId,
    })
    await page.reload()
    await matching.getByRole('link', { name: '/labels/label.png' }).waitFor()
    assert.equal(await matching.getByRole('link').count(), 1)
    await pressEnter(page.getByRole('button', { name: 'Turn off' }))
    await page.getByText('None of these files matches').waitFor()
    await pressEnter(page.getByRole('button', { name: 'Turn on' }))
    await matching.waitFor()
    await go(page, at('ingestion-rules'))
    await page.getByLabel('Media type of the file').fill('image/png')
    await page.getByLabel('Path of the file').fill('/labels/special/x.png')
    await pressEnter(page.getByRole('button', { name: 'Find the rule' }))
    await page.getByRole('link', { name: 'image/png /labels/special' }).waitFor()
    await page.getByLabel('Path of the file').fill('/else/x.png')
    await page.keyboard.press('Enter')
    await page.getByText('the file would be refused').waitFor()
    assert.deepEqual(problems, [])
  })

  it('show both changes where two people edit an ingestion rule, and delete it', async () => {
    const { id } = await create('/ingestion-rules', { content_type_glob: 'audio/*', agent_id: suite.app.agentId })
    const { page } = await open(`ingestion-rules/${id}`)
    await pressEnter(page.getByRole('button', { name: 'Edit' }))
    const form = page.getByRole('dialog', { name: 'Edit' })
    await form.getByLabel('Folder').fill('/mine')
    await suite.app.admin.patch(`/ingestion-rules/${id}`, { metadata: { by: 'theirs' } })
    await pressEnter(form.getByRole('button', { name: 'Save' }))
    const conflict = page.getByRole('dialog', { name: 'Another person has changed this record' })
    await conflict.getByText('"theirs"').waitFor()
    await pressEnter(conflict.getByRole('button', { name: 'Save mine' }))
    await form.waitFor({ state: 'hidden' })
    const rule = await read(`/ingestion-rules/${id}`)
    assert.deepEqual([rule.path_prefix, rule.metadata], ['/mine', { by: 'theirs' }])
    await pressEnter(page.getByRole('button', { name: 'Delete' }))
    await pressEnter(page.getByRole('dialog', { name: 'Delete' }).getByRole('button', { name: 'Delete' }))
    await heading(page, 'Ingestion rules')
    assert.equal((await suite.app.admin.get(`/ingestion-rules/${id}`)).status, 404)
  })

  it('create a metadata schema, check entries by its form, and list what violates it', async () => {
    await create('/documents', { path: '/faq/old.md', content: 'x', metadata: { language: 'fr' } })
    const { page, problems } = await open('metadata-schemas')
    await page.getByText('No metadata schema yet').waitFor()
    await pressEnter(page.getByRole('button', { name: 'New metadata schema' }).first())
    const form = page.getByRole('dialog', { name: 'New metadata schema' })
    await form.getByLabel('Folder').fill('/faq')
    await pressEnter(form.getByRole('button', { name: 'Create' }))
    await heading(page, '/faq')
    await pressEnter(page.getByRole('tab', { name: 'Form' }))
    await pressEnter(page.getByRole('button', { name: 'Check' }))
    await page.getByText('The metadata is not valid').waitFor()
    await focusOn(page.getByRole('combobox', { name: 'Language' }))
    await choose(page, 'de')
    await pressEnter(page.getByRole('button', { name: 'Check' }))
    await page.getByText('The metadata is valid').waitFor()
    await pressEnter(page.getByRole('tab', { name: 'Stored metadata' }))
    await pressEnter(page.getByRole('button', { name: 'Check stored metadata' }))
    await page.getByRole('row', { name: /^\/faq\/old\.md/ }).waitFor()
    await page.getByText('1 record was checked.').waitFor()
    const [schema] = (await read(`/metadata-schemas?project_id=${project()}`)).data
    await pressEnter(page.getByRole('button', { name: 'Edit' }))
    const edit = page.getByRole('dialog', { name: 'Edit' })
    await edit.getByLabel('Folder').fill('/help')
    await suite.app.admin.patch(`/metadata-schemas/${schema.id}`, { schema: { type: 'object', title: 'theirs' } })
    await pressEnter(edit.getByRole('button', { name: 'Save' }))
    const conflict = page.getByRole('dialog', { name: 'Another person has changed this record' })
    await conflict.getByText('"title": "theirs"').waitFor()
    await pressEnter(conflict.getByRole('button', { name: 'Save mine' }))
    await heading(page, '/help')
    assert.equal((await read(`/metadata-schemas/${schema.id}`)).schema.title, 'theirs')
    assert.deepEqual(
      problems.filter(problem => !problem.includes('412')),
      [],
    )
    await pressEnter(page.getByRole('button', { name: 'Delete' }))
    await pressEnter(page.getByRole('dialog', { name: 'Delete' }).getByRole('button', { name: 'Delete' }))
    await heading(page, 'Metadata schemas')
  })

  it('total the feedback by day, agent, version and label, and lead to the rated sessions', async () => {
    const { id } = await create('/sessions', { agent_id: suite.app.agentId, name: 'Rated', auto_generate: true })
    const { reply } = await post(`/sessions/${id}/messages?wait=true`, { message: 'hi' })
    const feedback = { rating: -1, labels: ['wrong'], comment: 'It closes at six.' }
    const path = `/sessions/${id}/messages/${reply.message.document_id}/feedback`
    assert.equal((await suite.app.admin.put(path, feedback)).status, 200)
    const { page, problems } = await open('feedback')
    await page
      .getByRole('table', { name: 'By agent' })
      .getByRole('row', { name: /^Helper 1 0 1 0%/ })
      .waitFor()
    await page
      .getByRole('table', { name: 'By label' })
      .getByRole('row', { name: /^wrong 1 0 1/ })
      .waitFor()
    await page.getByText('It closes at six.').waitFor()
    await focusOn(page.getByRole('combobox', { name: 'Agent' }))
    await choose(page, 'Helper')
    await page
      .getByRole('table', { name: 'By version of the agent' })
      .getByRole('row', { name: /^Version 1 1/ })
      .waitFor()
    await pressEnter(page.getByRole('link', { name: 'With bad ratings' }))
    await heading(page, 'Sessions')
    assert.equal(new URL(page.url()).search, `?rating=-1&agent=${suite.app.agentId}&time=month`)
    await page.getByRole('link', { name: 'Rated' }).waitFor()
    await page.goBack()
    await pressEnter(page.getByRole('link', { name: 'In its session' }))
    await heading(page, 'Rated')
    assert.deepEqual(problems, [])
  })

  it('lead from a turn to its chain, and stop it', async () => {
    const { id: turn } = await post(`/agents/${suite.app.agentId}/generate?wait=true`, { prompt: 'hi' })
    const chain = `chain_${'0'.repeat(25)}1`
    await suite.app.pool.query(voidStatement`
      insert into chains (id, project_id, agent_id, root_generation_id, generation_count, "limit", limit_source,
        last_generation_at)
      values (${chain}, ${project()}, ${suite.app.agentId}, ${turn}, 2, 100, 'platform', now())`)
    await suite.app.pool.query(voidStatement`update generations set chain_id = ${chain} where id = ${turn}`)
    const { page, problems } = await open(`traces/${turn}`)
    await pressEnter(page.getByRole('link', { name: 'Turns of its chain' }))
    await heading(page, 'Chain')
    await page.getByText('2 of at most 100').waitFor()
    await page.getByRole('table', { name: 'Turns of the chain' }).getByRole('link', { name: 'Helper' }).waitFor()
    await pressEnter(page.getByRole('button', { name: 'Stop chain' }))
    await pressEnter(page.getByRole('dialog', { name: 'Stop chain' }).getByRole('button', { name: 'Stop chain' }))
    await page.getByText('Stopped', { exact: true }).waitFor()
    assert.notEqual((await read(`/chains/${chain}`)).stopped_at, null)
    await go(page, at('chains?status=concluded'))
    await page.getByRole('row', { name: /^Helper Concluded 2 of at most 100/ }).waitFor()
    assert.deepEqual(problems, [])
  })

  it('clone a project with the chosen kinds, and export a template with a list of the omitted', async () => {
    assert.deepEqual(Object.keys(projectCopy.kinds).toSorted(), cloneableNames().toSorted())
    const { page, problems } = await open('copy')
    await focusOn(page.getByLabel('Name of the new project'))
    await page.keyboard.type('Atlas copy')
    await focusOn(page.getByRole('checkbox', { name: 'Triggers' }))
    await page.keyboard.press('Space')
    await pressEnter(page.getByRole('button', { name: 'Clone' }))
    await page.getByText(/^Atlas copy was created with \d+ copies/).waitFor()
    await page.getByText('Not chosen: Triggers.').waitFor()
    const { data: projects } = await read('/projects?name=Atlas copy')
    const { data: agents } = await read(`/agents?project_id=${projects[0].id}`)
    assert.deepEqual(
      agents.map(({ name }: { name: string }) => name),
      ['Helper'],
    )
    await pressEnter(page.getByRole('button', { name: 'Export' }))
    await page.getByText(/^The template has \d+ resources/).waitFor()
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      pressEnter(page.getByRole('button', { name: 'Download template' })),
    ])
    const text = await new Response((await download.createReadStream()) as any).text()
    const types = () => Object.values<any>(JSON.parse(text).resources).map(({ type }) => type)
    assert.ok(types().includes('agent') && !types().includes('document'))
    const [request] = await Promise.all([
      page.waitForRequest(each => each.url().endsWith('/formations/export')),
      (async () => {
        await focusOn(page.getByRole('checkbox', { name: 'Include content' }))
        await page.keyboard.press('Space')
        await pressEnter(page.getByRole('button', { name: 'Export' }))
      })(),
    ])
    assert.deepEqual(request.postDataJSON().include, ['content'])
    await pressEnter(page.getByRole('link', { name: 'Open the new project' }))
    await page.waitForURL(`**/p/${projects[0].id}/start`)
    assert.deepEqual(problems, [])
  })

  it('show hostile text as text, and have no violation of WCAG 2.2 AA', async () => {
    const { id: agent_id } = await create('/agents', { name: HOSTILE, ai_provider_id: suite.app.providerId })
    const { id: ruleId } = await create('/ingestion-rules', {
      content_type_glob: 'video/*',
      agent_id,
      metadata: { note: HOSTILE },
    })
    const { id: schemaId } = await create('/metadata-schemas', {
      resource_type: 'file',
      path_prefix: '/hostile',
      schema: { type: 'object', description: HOSTILE, properties: { note: { type: 'string', title: HOSTILE } } },
    })
    const turn = await post(`/agents/${agent_id}/generate?wait=true`, { prompt: 'hi' })
    const comment = { rating: 1, comment: HOSTILE }
    assert.equal((await suite.app.admin.put(`/generations/${turn.id}/feedback`, comment)).status, 200)
    await suite.checkHostileText([
      'ingestion-rules',
      `ingestion-rules/${ruleId}`,
      `metadata-schemas/${schemaId}`,
      `metadata-schemas/${schemaId}?tab=form`,
      'feedback',
    ])
    await suite.checkAccess([
      ['ingestion-rules', 'Ingestion rules'],
      [`ingestion-rules/${ruleId}`, 'video/*'],
      ['metadata-schemas', 'Metadata schemas'],
      [`metadata-schemas/${schemaId}`, '/hostile'],
      [`metadata-schemas/${schemaId}?tab=form`, '/hostile'],
      [`metadata-schemas/${schemaId}?tab=audit`, '/hostile'],
      ['feedback', 'Feedback'],
      ['copy', 'Clone and export'],
      ['chains', 'Chains'],
    ])
  })
})
