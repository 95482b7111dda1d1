import assert from 'node:assert/strict'
import type { Page, Route } from 'playwright-core'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { postedBy } from '../support/replies.ts'
import { choose, consoleSuite, focusOn, go, openConsole, pressEnter } from './support.ts'

const READ = ['sessions:GetSession', 'sessions:ListSessions', 'sessions:ListSessionMessages']
const OPERATE = [...READ, 'sessions:OperateSession', 'prepared-replies:ListPreparedReplies', 'actors:GetActor']
const NOTES = [
  'sessions:ListSessionNotes',
  'sessions:CreateSessionNote',
  'sessions:UpdateSessionNote',
  'sessions:DeleteSessionNote',
]

describe('answering as an operator in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation'])
  const { at, heading, closeLater } = suite
  const post = (path: string, body: object = {}) => postedBy(suite.app.admin, path, body)
  const project_id = () => suite.app.projectId
  let count = 0
  /** A user with these permissions and a display name, and the same user's tab. */
  async function staff(display_name: string, actions: string[], view: string) {
    const username = `operator${++count}`
    const user = await suite.app.user(username, [allowing(project_id(), actions)])
    assert.equal((await suite.app.admin.patch(`/users/${user.id}`, { display_name })).status, 200)
    const watched = await openConsole(suite.chromium, suite.app, at(view), username)
    closeLater(watched)
    return { ...watched, user }
  }
  /** A session of an end user that has written. */
  async function session(name: string) {
    const actor = await post('/actors', { project_id: project_id(), name, external_id: `crm-${++count}` })
    const made = await post('/sessions', { agent_id: suite.app.agentId, actor_id: actor.id, name: `${name} asks` })
    await post(`/sessions/${made.id}/messages`, { message: `Hello from ${name}` })
    return made
  }
  const reply = (page: Page) => page.getByLabel('Your reply to the user')
  const transcript = (page: Page) => page.getByRole('log', { name: 'Transcript' })
  const messages = async ({ id }: { id: string }) =>
    (await suite.app.admin.get(`/sessions/${id}/messages`)).body.data.map(({ content }: any) => content)

  it('writes notes among the messages, which colleagues see with author and time, by keyboard', async () => {
    const made = await session('Ada')
    const { page, problems } = await staff('Rosa', [...READ, ...NOTES], `sessions/${made.id}`)
    await heading(page, 'Ada asks')
    await pressEnter(page.getByRole('button', { name: 'Write an internal note' }))
    await page.keyboard.type('Refunded twice this year')
    await page.reload()
    const field = page.getByLabel('Internal note')
    await eventually(async () => (await field.inputValue()) === 'Refunded twice this year')
    await pressEnter(page.getByRole('button', { name: 'Save note' }))
    const note = transcript(page).getByRole('region', { name: 'Internal note' })
    await note.getByText('Refunded twice this year').waitFor()
    assert.match(await note.innerText(), /You\s+Internal note/i)
    await post(`/sessions/${made.id}/messages`, { message: 'Still there?' })
    await eventually(async () =>
      /Hello from Ada[\s\S]*Refunded twice[\s\S]*Still there/.test(await transcript(page).innerText()),
    )

    const leo = await staff('Leo', [...READ, 'sessions:ListSessionNotes'], `sessions/${made.id}`)
    const shown = transcript(leo.page).getByRole('region', { name: 'Internal note' })
    await shown.getByText('Rosa').waitFor()
    assert.equal(await shown.getByRole('button').count(), 0)
    assert.equal(await leo.page.getByRole('button', { name: 'Write an internal note' }).count(), 0)

    await pressEnter(note.getByRole('button', { name: 'More about the note' }))
    await pressEnter(page.getByRole('menuitem', { name: 'Edit' }))
    const dialog = page.getByRole('dialog')
    await focusOn(dialog.getByLabel('Internal note'))
    await page.keyboard.press('Control+a')
    await page.keyboard.type('Refunded three times')
    await pressEnter(dialog.getByRole('button', { name: 'Save note' }))
    await note.getByText('Refunded three times').waitFor()
    // A note of a colleague appears without a reload.
    await shown.getByText('Refunded three times').waitFor()
    await pressEnter(note.getByRole('button', { name: 'More about the note' }))
    await pressEnter(page.getByRole('menuitem', { name: 'Delete' }))
    await pressEnter(page.getByRole('dialog').getByRole('button', { name: 'Delete' }))
    await note.waitFor({ state: 'detached' })
    assert.deepEqual([...problems, ...leo.problems], [])
  })

  it('inserts prepared replies by a slash and from the menu, with the name of the end user, by keyboard', async () => {
    const made = await session('Bea $& Co')
    for (const [name, text] of [
      ['Refund booked', 'Dear {{customer_name}}, your refund is booked.'],
      ['Greeting', 'Good morning.'],
    ])
      await post('/prepared-replies', { project_id: project_id(), name, text })
    const { page, problems } = await staff('Rosa', OPERATE, `sessions/${made.id}`)
    await pressEnter(page.getByRole('button', { name: 'Take over' }))
    await page.getByText('You answer now.').waitFor()
    await focusOn(reply(page))
    // A slash within a word is a text, as is a slash without a match.
    await page.keyboard.type('and/or /nothing such')
    await page.keyboard.press('Control+a')
    await page.keyboard.type('Hi! /refu')
    await page.getByRole('option', { name: 'Refund booked' }).waitFor()
    await eventually(async () => (await page.locator('[role=option][data-combobox-selected]').count()) === 1)
    await page.keyboard.press('Enter')
    const text = 'Hi! Dear Bea $& Co, your refund is booked.'
    await eventually(async () => (await reply(page).inputValue()) === text)
    await page.keyboard.type(' Bye.')
    await page.keyboard.press('Enter')
    await transcript(page).getByText(`${text} Bye.`).waitFor()
    assert.deepEqual(await messages(made), ['Hello from Bea $& Co', `${text} Bye.`])
    await eventually(async () => (await reply(page).inputValue()) === '')
    await pressEnter(page.getByRole('button', { name: 'Prepared replies' }))
    await pressEnter(page.getByRole('menuitem', { name: 'Greeting' }))
    await eventually(async () => (await reply(page).inputValue()) === 'Good morning.')
    assert.deepEqual(problems, [])
  })

  it('names who is in charge and since when, and requires a confirmation to take the session from a colleague', async () => {
    const made = await session('Cleo')
    const ronja = await staff('Ronja', OPERATE, `sessions/${made.id}`)
    const leo = await staff('Leo', OPERATE, `sessions/${made.id}`)
    await heading(leo.page, 'Cleo asks')
    await pressEnter(ronja.page.getByRole('button', { name: 'Take over' }))
    await focusOn(reply(ronja.page))
    await ronja.page.keyboard.type('I am looking into')
    await leo.page.getByText('Ronja answers in this session.').waitFor()
    assert.equal(await reply(leo.page).count(), 0)
    await go(leo.page, at('sessions?assignee=none'))
    await heading(leo.page, 'Sessions')
    const row = leo.page.getByRole('table', { name: 'Sessions' }).locator('tbody tr').filter({ hasText: 'Cleo asks' })
    await eventually(async () => (await row.count()) === 0)
    await focusOn(leo.page.getByRole('combobox', { name: 'Assignee' }))
    await choose(leo.page, 'Ronja')
    await row.getByText('Ronja answers').waitFor()
    await row
      .getByText(/second|minute|now/)
      .first()
      .waitFor()
    await pressEnter(row.getByRole('link', { name: 'Cleo asks' }))

    await pressEnter(leo.page.getByRole('button', { name: 'Take over from Ronja' }))
    const dialog = leo.page.getByRole('dialog')
    await dialog.getByText('Ronja answers in this session').waitFor()
    assert.equal((await suite.app.admin.get(`/sessions/${made.id}`)).body.assigned_to, ronja.user.id)
    await pressEnter(dialog.getByRole('button', { name: 'Take over' }))
    await leo.page.getByText('You answer now.').waitFor()

    // What the colleague was writing is kept, not sent by Enter, and survives a reload.
    await ronja.page.getByText('Leo answers now. Your reply was not sent').waitFor()
    await focusOn(reply(ronja.page))
    await ronja.page.keyboard.press('Enter')
    await ronja.page.reload()
    await eventually(async () => (await reply(ronja.page).inputValue()) === 'I am looking into')
    assert.deepEqual(await messages(made), ['Hello from Cleo'])
    await pressEnter(ronja.page.getByRole('button', { name: 'Take over from Leo' }))
    await pressEnter(ronja.page.getByRole('dialog').getByRole('button', { name: 'Take over' }))
    await ronja.page.getByText('You answer now.').waitFor()
    await focusOn(reply(ronja.page))
    await ronja.page.keyboard.press('End')
    await ronja.page.keyboard.type(' it.')
    await ronja.page.keyboard.press('Enter')
    await leo.page.getByText('I am looking into it.').waitFor()
    assert.deepEqual([...ronja.problems, ...leo.problems], [])
  })

  it('offers the choice where a colleague was faster', async () => {
    const made = await session('Dora')
    const leo = await suite.app.user(`operator${++count}`, [allowing(project_id(), OPERATE)])
    await suite.app.admin.patch(`/users/${leo.id}`, { display_name: 'Leo' })
    const { page } = await staff('Rosa', OPERATE, `sessions/${made.id}`)
    await heading(page, 'Dora asks')
    const beforeTakeover = async (route: Route) => {
      assert.equal((await leo.post(`/sessions/${made.id}/takeover`)).status, 200)
      await route.continue()
    }
    await page.route('**/takeover', beforeTakeover, { times: 1 })
    await pressEnter(page.getByRole('button', { name: 'Take over', exact: true }))
    const dialog = page.getByRole('dialog')
    await dialog.getByText('Leo was faster and answers in this session now.').waitFor()
    assert.equal((await suite.app.admin.get(`/sessions/${made.id}`)).body.assigned_to, leo.id)
    await pressEnter(dialog.getByRole('button', { name: 'Cancel' }))
    await page.getByText('Leo answers in this session.').waitFor()
  })

  it('manages prepared replies by keyboard, with the permission of each step', async () => {
    const { page, problems } = await staff('Rosa', ['prepared-replies:*'], 'prepared-replies')
    await heading(page, 'Prepared replies')
    await pressEnter(page.getByRole('button', { name: 'New prepared reply' }).first())
    const dialog = page.getByRole('dialog')
    await focusOn(dialog.getByLabel('Name'))
    await page.keyboard.type('Delivery')
    await focusOn(dialog.getByLabel('Text'))
    await page.keyboard.type('It arrives on Friday.')
    await pressEnter(dialog.getByRole('button', { name: 'Create' }))
    const row = page
      .getByRole('table', { name: 'Prepared replies' })
      .locator('tbody tr')
      .filter({ hasText: 'Delivery' })
    await row.getByText('It arrives on Friday.').waitFor()
    await pressEnter(row.getByRole('button', { name: 'Edit' }))
    await focusOn(dialog.getByLabel('Text'))
    await page.keyboard.press('Control+a')
    await page.keyboard.type('It arrives on Monday.')
    await pressEnter(dialog.getByRole('button', { name: 'Save' }))
    await row.getByText('It arrives on Monday.').waitFor()
    const reader = await staff('Leo', ['prepared-replies:ListPreparedReplies'], 'prepared-replies')
    await reader.page.getByText('It arrives on Monday.').waitFor()
    for (const name of ['New prepared reply', 'Edit', 'Delete'])
      assert.equal(await reader.page.getByRole('button', { name }).count(), 0, name)
    await pressEnter(row.getByRole('button', { name: 'Delete' }))
    await pressEnter(dialog.getByRole('button', { name: 'Delete' }))
    await row.waitFor({ state: 'detached' })
    assert.deepEqual([...problems, ...reader.problems], [])
  })
})
