import assert from 'node:assert/strict'
import fs from 'node:fs'
import type { Page } from 'playwright-core'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import { consoleSuite, go, HOSTILE, openConsole, pressEnter } from './support.ts'

describe('views of end users', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'snapshot'])
  const { at, open, heading, closeLater } = suite
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const project_id = () => suite.app.projectId
  let count = 0
  /** Opens a view as a user with these permissions only. */
  const openAs = async (actions: string[], view: string) => {
    const name = `lead${++count}`
    await suite.app.user(name, [allowing(project_id(), actions)])
    const watched = await openConsole(suite.chromium, suite.app, at(view), name)
    closeLater(watched)
    return watched
  }
  /** An end user with a session in which the agent has replied. */
  async function customer(name: string, external_id: string) {
    const actor = await post('/actors', { project_id: project_id(), name, external_id })
    const session = await post('/sessions', { agent_id: suite.app.agentId, actor_id: actor.id, name: `${name} asks` })
    await post(`/sessions/${session.id}/messages`, { message: `Hello from ${name}` })
    await post(`/sessions/${session.id}/generate?wait=true`)
    return { actor, session }
  }
  const palette = async (page: Page, text: string) => {
    await page.keyboard.press('Control+k')
    await page.getByRole('textbox', { name: 'View, project, agent, end user, session or any ID' }).fill(text)
  }
  /** Waits until an entry of the palette is marked. */
  const marked = (page: Page, text: string | RegExp) =>
    page.locator('[role=option][data-combobox-selected]').filter({ hasText: text }).waitFor()
  const rows = (page: Page, label: string) => page.getByRole('table', { name: label }).locator('tbody tr')

  it('are found by a pasted external ID with Ctrl K and Enter', async () => {
    const { actor } = await customer('Ada', 'crm-7781')
    const { page, problems } = await openAs(['projects:GetProject', 'actors:ListActors', 'actors:GetActor'], 'actors')
    await heading(page, 'End users')
    await palette(page, ' crm-7781 ')
    await marked(page, 'Ada')
    await page.keyboard.press('Enter')
    await page.waitForURL(`**/actors/${actor.id}`)
    await heading(page, 'Ada')
    assert.deepEqual(problems, [])
  })

  it('open the marked entry of Ctrl K: views, agents, sessions, and records by their ID', async () => {
    const { actor, session } = await customer('Mira', 'crm-1')
    const { page, problems } = await open('start')
    await heading(page, 'Getting started')
    for (const [text, mark, path, title] of [
      ['usage', 'Usage', 'usage', 'Usage'],
      ['atlas', null, null, null],
      ['tools', 'Tools', 'tools', 'Tools'],
      ['helper', 'Helper', `agents/${suite.app.agentId}`, 'Helper'],
      ['mira asks', 'Mira asks', `sessions/${session.id}`, 'Mira asks'],
      [actor.id, actor.id, `actors/${actor.id}`, 'Mira'],
      [session.id, session.id, `sessions/${session.id}`, 'Mira asks'],
    ] as const) {
      await palette(page, text)
      if (mark === null) {
        await page.getByText('Nothing found').waitFor()
        await page.keyboard.press('Escape')
        continue
      }
      await marked(page, mark)
      await page.keyboard.press('Enter')
      await page.waitForURL(`**/${path}`)
      await heading(page, title as string)
    }
    // Arrow keys move the mark, and the marked entry opens.
    await palette(page, 'e')
    await page.keyboard.press('ArrowDown')
    const second = await page.locator('[role=option][data-combobox-selected]').getAttribute('value')
    await page.keyboard.press('Enter')
    await page.waitForURL(`**${second}`)
    assert.deepEqual(problems, [])
  })

  it('open a record by its ID where its view is below another record, of which one read has the address', async () => {
    const { admin } = suite.app
    const { actor, session } = await customer('Nina', 'crm-10')
    const store = await post('/memory-stores', { project_id: project_id(), name: 'habits' })
    await post('/memory-entries', { memory_store_id: store.id, actor_id: actor.id, content: 'Prefers coffee' })
    const [memory] = (await admin.get(`/memories?memory_store_id=${store.id}`)).body.data
    const trigger = await post('/triggers', {
      project_id: project_id(),
      name: 'Daily',
      type: 'manual',
      target_type: 'agent',
      target_id: suite.app.agentId,
      input: { message: 'Hello' },
    })
    const firing = await post(`/triggers/${trigger.id}/fire?wait=false`)
    const [turn] = (await admin.get(`/generations?session_id=${session.id}`)).body.data
    const [event] = (await admin.get(`/events?project_id=${project_id()}&limit=1`)).body.data
    const { page, problems } = await open('start')
    await heading(page, 'Getting started')
    for (const [id, address] of [
      [memory.id, `memory/${store.id}/${memory.id}`],
      [firing.id, `triggers/${trigger.id}/firings/${firing.id}`],
      [turn.trace_id, `traces/${turn.trace_id}`],
      [event.id, `events/${event.id}`],
    ]) {
      await palette(page, id)
      await marked(page, id)
      await page.keyboard.press('Enter')
      await page.waitForURL(`**/${address}`)
      await page.getByRole('heading', { level: 1 }).waitFor()
    }
    assert.deepEqual(problems, [])
  })

  it('offer nothing that the user may not list', async () => {
    await customer('Nora', 'crm-2')
    const { page } = await openAs(['projects:GetProject', 'agents:ListAgents'], 'agents')
    await heading(page, 'Agents')
    const requests: string[] = []
    page.on('request', request => void requests.push(new URL(request.url()).pathname))
    await palette(page, 'nora')
    await page.getByText('Nothing found').waitFor()
    await page.keyboard.press('Escape')
    assert.ok(requests.some(path => path.endsWith('/agents')))
    assert.ok(!requests.some(path => /\/(actors|sessions)$/.test(path)))
    await go(page, at('actors'))
    await page.getByText('actors:ListActors').waitFor()
  })

  it('list end users with a search, and show one with the parts that the user may read', async () => {
    const { actor, session } = await customer('Olga', 'crm-3')
    const store = await post('/memory-stores', { project_id: project_id(), name: 'facts' })
    await post('/memory-entries', { memory_store_id: store.id, actor_id: actor.id, content: 'Prefers tea' })
    const { page, problems } = await openAs(
      [
        'actors:ListActors',
        'actors:GetActor',
        'sessions:ListSessions',
        'sessions:ListSessionMessages',
        'memories:ListMemories',
        'usage:GetAggregate',
      ],
      'actors',
    )
    await page.getByRole('textbox', { name: 'Name, external ID or any ID' }).fill(session.id)
    await eventually(async () => (await rows(page, 'End users').count()) === 1)
    await pressEnter(page.getByRole('link', { name: 'Olga', exact: true }))
    await heading(page, 'Olga')
    await rows(page, 'Sessions').getByRole('link', { name: 'Olga asks' }).waitFor()
    await rows(page, 'Sessions').locator(`a[href$="/agents/${suite.app.agentId}"]`).waitFor()
    await rows(page, 'Latest messages').getByRole('link', { name: 'Hello from Olga', exact: true }).waitFor()
    await rows(page, 'Facts').getByText('Prefers tea').waitFor()
    await page.getByRole('heading', { name: 'Usage of 30 days' }).waitFor()
    for (const name of ['Files', 'Approvals', 'Access'])
      assert.equal(await page.getByRole('heading', { name, exact: true, level: 2 }).count(), 0, name)
    for (const name of ['Erase content', 'Export', 'Take over'])
      assert.equal(await page.getByRole('button', { name }).count(), 0, name)
    assert.deepEqual(problems, [])
  })

  it('erase the content of an end user after a preview of the counts, by keyboard', async () => {
    const { actor, session } = await customer('Petra', 'crm-4')
    const { page } = await openAs(
      [
        'actors:ListActors',
        'actors:GetActor',
        'actors:PurgeActorContent',
        'sessions:ListSessions',
        'sessions:ListSessionMessages',
      ],
      `actors/${actor.id}`,
    )
    await pressEnter(page.getByRole('button', { name: 'Erase content' }))
    const dialog = page.getByRole('dialog')
    await dialog.getByText('This would erase:').waitFor()
    assert.match(await dialog.innerText(), /Messages\s+2/)
    assert.match(await dialog.innerText(), /Generations\s+1/)
    assert.equal(
      (await suite.app.admin.get(`/sessions/${session.id}/messages`)).body.data[0].content,
      'Hello from Petra',
    )
    await pressEnter(dialog.getByRole('button', { name: 'Erase content' }))
    await page.getByText('The content is being erased').waitFor()
    await eventually(
      async () => (await suite.app.admin.get(`/sessions/${session.id}/messages`)).body.data[0]?.content == null,
    )
  })

  it('take over a session and export the messages of an end user', async () => {
    const { actor, session } = await customer('Quinn', 'crm-5')
    const { page } = await openAs(
      [
        'actors:ListActors',
        'actors:GetActor',
        'sessions:ListSessions',
        'sessions:GetSession',
        'sessions:ListSessionMessages',
        'sessions:OperateSession',
        'conversations:GetConversation',
      ],
      `actors/${actor.id}`,
    )
    await pressEnter(page.getByRole('button', { name: 'Export' }))
    const download = page.waitForEvent('download')
    await pressEnter(page.getByRole('dialog').getByRole('button', { name: 'Export' }))
    const lines = fs
      .readFileSync(await (await download).path(), 'utf8')
      .trim()
      .split('\n')
    assert.ok(lines.some(line => JSON.parse(line).content === 'Hello from Quinn'))
    await pressEnter(page.getByRole('button', { name: 'Take over' }))
    await page.waitForURL(`**/sessions/${session.id}`)
    assert.equal((await suite.app.admin.get(`/sessions/${session.id}`)).body.control, 'operator')
  })

  it('filter the list of sessions, which names the end user, the agent and the last message', async () => {
    const { session } = await customer('Rita', 'crm-6')
    const other = await customer('Sven', 'crm-8')
    await post(`/sessions/${other.session.id}/attention`, { reason: 'angry' })
    const { page, problems } = await openAs(
      [
        'sessions:ListSessions',
        'sessions:ListSessionMessages',
        'sessions:ListFeedback',
        'actors:GetActor',
        'agents:GetAgent',
      ],
      'sessions',
    )
    const row = (name: string) => rows(page, 'Sessions').filter({ hasText: `${name} asks` })
    await row('Rita').waitFor()
    assert.match(await row('Rita').innerText(), /Agent: echo: \[Rita\]: Hello from Rita/)
    await row('Rita').getByText('crm-6').waitFor()
    for (const name of ['Rita', 'Helper']) await row('Rita').getByRole('link', { name, exact: true }).waitFor()
    const only = async (name: string) => {
      await eventually(async () => (await rows(page, 'Sessions').count()) === 1)
      await row(name).waitFor()
    }
    await page.getByRole('textbox', { name: 'End user' }).fill('crm-6')
    await only('Rita')
    await go(page, at('sessions?attention=true'))
    await only('Sven')
    const { data } = (await suite.app.admin.get(`/sessions/${session.id}/messages`)).body
    await suite.app.admin.put(`/sessions/${session.id}/messages/${data[1].document_id}/feedback`, { rating: -1 })
    await go(page, at('sessions?rating=-1'))
    await only('Rita')
    await go(page, at('sessions?time=day&actor=sven'))
    await only('Sven')
    assert.deepEqual(problems, [])
  })

  it('are named with a link in the inbox and in Usage', async () => {
    const { actor, session } = await customer('Uma', 'crm-11')
    await post(`/sessions/${session.id}/attention`, { reason: 'angry' })
    const { page, problems } = await openAs(
      [
        'exceptions:ListExceptions',
        'sessions:ListSessions',
        'usage:GetAggregate',
        'actors:GetActor',
        'agents:GetAgent',
      ],
      'inbox',
    )
    const people = page.getByRole('region', { name: 'Requests for a person' })
    await people.getByRole('link', { name: 'Uma asks' }).waitFor()
    await people.getByRole('link', { name: 'Helper' }).first().waitFor()
    await pressEnter(people.getByRole('link', { name: 'Uma', exact: true }))
    await page.waitForURL(`**/actors/${actor.id}`)
    await go(page, at('usage?by=actor'))
    await page.getByRole('link', { name: 'Uma', exact: true }).waitFor()
    await page.getByText('crm-11', { exact: true }).waitFor()
    await go(page, at('usage?by=agent'))
    await page.getByRole('link', { name: 'Helper', exact: true }).waitFor()
    assert.deepEqual(problems, [])
  })

  it('have no violation of WCAG 2.2 AA, and show hostile text as text', async () => {
    const { actor } = await customer('Tom', 'crm-9')
    const hostile = await post('/actors', {
      project_id: project_id(),
      name: HOSTILE,
      external_id: HOSTILE.slice(0, 90),
    })
    await post('/sessions', { agent_id: suite.app.agentId, actor_id: hostile.id, name: HOSTILE })
    await suite.checkHostileText(['actors', `actors/${hostile.id}`, 'sessions'])
    await suite.checkAccess([
      ['actors', 'End users'],
      [`actors/${actor.id}`, 'Tom'],
      ['sessions', 'Sessions'],
      ['traces', 'Traces'],
    ])
  })
})
