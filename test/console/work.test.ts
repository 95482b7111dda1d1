import assert from 'node:assert/strict'
import { eventually } from '../support/app.ts'
import { allowing } from '../support/oauth.ts'
import { consoleSuite, go, HOSTILE, openConsole } from './support.ts'

describe('work in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite(['generation', 'orchestration', 'evaluation', 'delivery'])
  const { at, open, heading, closeLater } = suite
  const made = async (path: string, body: object): Promise<any> => {
    const reply = await suite.app.admin.post(path, { project_id: suite.app.projectId, ...body })
    assert.equal(reply.status, 201, JSON.stringify(reply.body))
    return reply.body
  }
  const read = async (path: string): Promise<any> => (await suite.app.admin.get(path)).body

  const workflow = (name: string, fields: object = {}) =>
    made('/workflows', {
      name,
      states: [
        { name: 'inbox', initial: true },
        { name: 'doing', kind: 'human' },
        { name: 'done', terminal: true },
      ],
      transitions: [
        { name: 'begin', from: ['inbox'], to: 'doing' },
        { name: 'finish', from: ['doing'], to: 'done' },
        { name: 'return', from: ['doing'], to: 'inbox' },
      ],
      ...fields,
    })
  const task = (workflow_id: string, title: string, fields: object = {}) =>
    made('/tasks', { workflow_id, title, ...fields })

  it('moves a card by dragging it and by the keyboard, and shows its history', async () => {
    const flow = await workflow('Requests')
    const { id } = await task(flow.id, 'Broken lamp')
    const { page, problems } = await open(`workflows/${flow.id}`)
    const column = (name: string) => page.getByRole('region', { name, exact: true })
    const state = async () => (await read(`/tasks/${id}`)).state
    const card = page.getByRole('article', { name: 'Broken lamp' })
    await card.dragTo(column('doing'))
    await column('doing').getByRole('article', { name: 'Broken lamp' }).waitFor()
    await eventually(async () => (await state()) === 'doing', { what: 'the task is moved' })
    await page.getByText('Broken lamp is in doing now').waitFor()
    await page.getByRole('button', { name: 'Actions of Broken lamp' }).focus()
    await page.keyboard.press('Enter')
    await page.getByRole('menuitem', { name: 'finish' }).waitFor()
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('Enter')
    await eventually(async () => (await state()) !== 'doing', { what: 'the task is moved' })
    await column('done').getByRole('article', { name: 'Broken lamp' }).waitFor()
    await page.getByRole('link', { name: 'Broken lamp' }).focus()
    await page.keyboard.press('Enter')
    const panel = page.getByRole('dialog', { name: 'Broken lamp' })
    await panel.getByText('finish: doing → done').waitFor()
    await panel.getByText('Created in inbox').waitFor()
    await page.keyboard.press('Escape')
    await panel.waitFor({ state: 'detached' })
    assert.deepEqual(problems, [])
  })

  it('creates, assigns and pauses tasks', async () => {
    const payload_schema = { type: 'object', properties: { order: { type: 'string' } }, required: ['order'] }
    const flow = await workflow('Orders', { payload_schema })
    const { page, problems } = await open(`workflows/${flow.id}`)
    await page.getByRole('button', { name: 'New task' }).click()
    const dialog = page.getByRole('dialog', { name: 'New task' })
    await dialog.getByLabel('Title').fill('Order 7')
    await page.keyboard.press('Enter')
    await dialog.getByText('This field is required').waitFor()
    await dialog.getByLabel('Order').fill('L-7')
    await page.keyboard.press('Enter')
    const menu = async (item: string) => {
      await page.getByRole('button', { name: 'Actions of Order 7' }).click()
      await page.getByRole('menuitem', { name: item }).click()
    }
    await menu('Assign')
    await page.getByRole('dialog').getByLabel('Assignee').fill('kim')
    await page.keyboard.press('Enter')
    await page.getByRole('article', { name: 'Order 7' }).getByText('kim').waitFor()
    await menu('Pause')
    await page.getByRole('dialog').getByLabel('Reason').fill('waits for parts')
    await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click()
    await page.getByRole('article', { name: 'Order 7' }).getByText('Paused').waitFor()
    await menu('Resume')
    const { data } = await read(`/tasks?workflow_id=${flow.id}`)
    const { assignee, payload } = data[0]
    assert.deepEqual([assignee, payload], ['kim', { order: 'L-7' }])
    await eventually(async () => (await read(`/tasks/${data[0].id}`)).pause_requested_at === null)
    assert.deepEqual(problems, [])
  })

  it('shows why the work of a task failed, and repeats it', async () => {
    const flow = await workflow('Drafts', {
      states: [
        {
          name: 'drafting',
          initial: true,
          on_enter: {
            dispatch: { kind: 'agent', agent_id: suite.app.agentId, input_mapping: { prompt: { var: 'task.title' } } },
          },
        },
        { name: 'done', terminal: true },
      ],
      transitions: [{ name: 'finish', from: ['drafting'], to: 'done' }],
    })
    const title = '@double {"error":{"status":400,"message":"too long"}}'
    const { id } = await task(flow.id, title)
    const { page, problems } = await open(`workflows/${flow.id}`)
    await page.getByText('Work failed').waitFor()
    await page.getByText('too long').first().waitFor()
    const attempts = async () => (await read(`/generations?limit=100`)).total
    const before = await attempts()
    await page.getByRole('button', { name: /Actions of/ }).click()
    await page.getByRole('menuitem', { name: 'Retry the work' }).click()
    await eventually(async () => (await attempts()) > before, { what: 'another turn' })
    await eventually(async () => (await read(`/tasks/${id}`)).automation_status === 'failed')
    assert.deepEqual(problems, [])
  })
})
