import assert from 'node:assert/strict'
import type { Page } from 'playwright-core'
import { json, startTarget } from '../execution/tool-target.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { consoleSuite, focusOn, HOSTILE, pressEnter, violations } from './support.ts'

const scripted = (replies: object[]) => `@double ${JSON.stringify(replies)}`

describe('the playground in the console', function () {
  this.timeout(180_000)
  const suite = consoleSuite()
  const { open } = suite
  const target = forSuite(startTarget)

  const create = (path: string, body: object) =>
    createdBy(suite.app.admin, path, { project_id: suite.app.projectId, ...body })
  const agent = async (fields: object) =>
    (await create('/agents', { ai_provider_id: suite.app.providerId, ...fields })).id as string
  const send = async (page: Page, text: string) => {
    await page.getByLabel('Message').fill(text)
    await page.keyboard.press('Enter')
  }

  it('shows arguments, results and verdicts of calls, and answers client tools with the keyboard alone', async () => {
    target.answer = json({ total: 240 })
    const orders = await create('/tools', { name: 'orders', description: 'Orders', execute: { url: target.url } })
    const guardrail = await create('/guardrails', { name: 'all', document: { class: 'A' } })
    const sign = { name: 'sign', type: 'client', parameters: { type: 'object' } }
    const id = await agent({
      name: 'Signs',
      guardrail_ids: [guardrail.id],
      tool_bindings: [{ tool_id: orders.id }, { tool: sign }],
    })
    const { page, problems } = await open(`playground?q=${id}`)
    const script = [
      { text: 'Let me look.', tool_calls: [{ name: 'orders', args: { id: 'A-17' } }] },
      { tool_calls: [{ name: 'sign', args: { page: 2 } }] },
      { text: 'It is signed.' },
    ]
    await send(page, scripted(script))
    const turn = page.getByRole('article')
    await turn.getByText('Guardrail of the agent: orders').waitFor()
    await turn.getByText('Allowed').first().waitFor()
    await pressEnter(turn.getByRole('button', { name: 'Arguments and result' }))
    await turn.getByRole('region', { name: 'Arguments orders' }).getByText('"id": "A-17"').waitFor()
    await turn.getByRole('region', { name: 'Result orders' }).getByText('"total": 240').waitFor()
    assert.deepEqual(await violations(page), [])
    await focusOn(turn.getByLabel('Result of sign'))
    await page.keyboard.insertText('{"signed": true}')
    await page.keyboard.press('Tab')
    await page.keyboard.press('Enter')
    await turn.getByText('Step 3: model').waitFor()
    await turn.getByText('It is signed.', { exact: true }).waitFor()
    // Each call is below the step that made it.
    const order = await turn.getByText(/^(Step \d: model|Tool (orders|sign))$/).allInnerTexts()
    assert.deepEqual(order, ['Step 1: model', 'Tool orders', 'Step 2: model', 'Tool sign', 'Step 3: model'])
    const { data } = (await suite.app.admin.get(`/generations?agent_id=${id}`)).body
    const { steps } = (await suite.app.admin.get(`/generations/${data[0].id}/transcript`)).body
    assert.deepEqual(steps[1].tool_results[0].result, { signed: true })
    await turn.getByRole('link', { name: 'Open trace' }).click()
    await page.getByRole('heading', { level: 1, name: 'Turn of Signs' }).waitFor()
    assert.deepEqual(problems, [])
  })

  const PIECES = 5000
  const talkative = async () => {
    const chunks = Array.from({ length: PIECES }, (_, n) => (n % 20 === 19 ? `w${n}.\n` : `w${n} `))
    await doubleClient(suite.app.double).put('pieces', { rules: [{ reply: { chunks, chunk_delay_ms: 1 } }] })
    return agent({ name: 'Talkative', model: 'pieces/m' })
  }
  /** Fails where the page was written more often than it was drawn, from now until the returned function is called. */
  const watchWrites = async (page: Page) => {
    await page.locator('main').waitFor()
    await page.evaluate(`window.drawn = 0; window.written = 0
      ;(function note() { drawn++; requestAnimationFrame(note) })()
      new MutationObserver(() => { written++ }).observe(document.querySelector('main'), { subtree: true, childList: true, characterData: true })`)
    return async () => {
      const [written, drawn] = (await page.evaluate('[written, drawn]')) as number[]
      // What else changes in the page: its buttons, the end of the turn.
      assert.ok(written <= drawn + 50, `written ${written} times, drawn ${drawn} times`)
    }
  }
  const checkText = async (shown: string, agentId: string) => {
    const words = (text: string) => text.match(/w\d+/g)
    const { data } = (await suite.app.admin.get(`/generations?agent_id=${agentId}`)).body
    const { output } = (await suite.app.admin.get(`/generations/${data[0].id}`)).body
    assert.equal(words(output.content)?.length, PIECES)
    assert.deepEqual(words(shown), words(output.content))
  }

  it('writes a reply of 5,000 pieces at most once a frame, and shows the text of the record', async () => {
    const id = await talkative()
    const { page, problems } = await open(`playground?q=${id}`)
    const checkWrites = await watchWrites(page)
    await send(page, 'Talk')
    const turn = page.getByRole('article')
    await turn.getByText('Total').waitFor({ timeout: 120_000 })
    await checkWrites()
    await eventually(async () => (await turn.innerText()).includes('w4999'))
    await checkText(await turn.innerText(), id)
    assert.deepEqual(problems, [])
  })

  it('does so in the transcript of a session', async () => {
    const id = await talkative()
    const session = await create('/sessions', { agent_id: id, name: 'Long', auto_generate: true })
    const { page, problems } = await open(`sessions/${session.id}`)
    await page.getByText('Live', { exact: true }).waitFor()
    const checkWrites = await watchWrites(page)
    await page.getByLabel('Message as the user').fill('Talk')
    await page.keyboard.press('Enter')
    const reply = page.getByRole('log').locator('p').filter({ hasText: 'w4999' })
    await reply.waitFor({ timeout: 120_000 })
    await checkWrites()
    await eventually(async () => (await suite.app.admin.get(`/sessions/${session.id}`)).body.generating_at === null)
    await checkText(await reply.innerText(), id)
    assert.deepEqual(problems, [])
  })

  it('sends a message to two agents side by side', async () => {
    const one = await agent({ name: 'One' })
    const two = await agent({ name: 'Two' })
    const { page, problems } = await open(`playground?q=${one}`)
    await page.getByRole('combobox', { name: 'Side by side with' }).click()
    await page.getByRole('option', { name: 'Two' }).click()
    await send(page, 'hello')
    await eventually(async () => (await page.getByText('echo: hello').count()) === 2)
    for (const id of [one, two]) assert.equal((await suite.app.admin.get(`/generations?agent_id=${id}`)).body.total, 1)
    assert.deepEqual(problems, [])
  })

  it('tries an earlier version of an agent next to the current one', async () => {
    const double = doubleClient(suite.app.double)
    const answer = (system: string) => ({ when: { system: { contains: system } }, reply: { text: `as ${system}` } })
    await double.put('versions', { rules: [answer('first'), answer('second')] })
    const id = await agent({ name: 'Versioned', model: 'versions/m', instructions: 'first' })
    await suite.app.admin.patch(`/agents/${id}`, { instructions: 'second' })
    const { page, problems } = await open(`agents/${id}?tab=versions`)
    await page.getByRole('button', { name: 'Try side by side' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Try side by side' }).click()
    await page.getByRole('heading', { name: 'Versioned (version 1)' }).waitFor()
    await send(page, 'Who are you?')
    for (const text of ['as first', 'as second']) await page.getByText(text).waitFor()
    assert.deepEqual(problems, [])
  })

  it('sends an edited message again in place of the first, and saves a turn as a dataset item', async () => {
    const id = await agent({ name: 'Again' })
    const dataset = await create('/datasets', { name: 'Golden' })
    const { page, problems } = await open(`playground?q=${id}`)
    await send(page, 'first')
    await page.getByText('Total').waitFor()
    await page.getByRole('button', { name: 'Edit and send again' }).click()
    await page.getByLabel('Message').fill('second')
    await page.keyboard.press('Enter')
    await page.getByText('echo: second').waitFor()
    assert.equal(await page.getByRole('article').count(), 1)
    await page.getByRole('button', { name: 'Save as dataset item' }).click()
    const dialog = page.getByRole('dialog', { name: 'Save as dataset item' })
    await dialog.getByLabel('Expected output').fill('another answer')
    await dialog.getByRole('button', { name: 'Save' }).click()
    await page.getByText('The turn was saved as an item').waitFor()
    const { data } = (await suite.app.admin.get(`/datasets/${dataset.id}/items`)).body
    assert.equal(data[0].expected_output, 'another answer')
    assert.deepEqual(problems, [])
  })

  it('shows hostile arguments and results as text', async () => {
    target.answer = json({ [HOSTILE]: HOSTILE })
    const tool = await create('/tools', { name: 'evil', description: 'Evil', execute: { url: target.url } })
    const id = await agent({ name: 'Evil', tool_bindings: [{ tool_id: tool.id }] })
    const { page, problems } = await open(`playground?q=${id}`)
    await send(page, scripted([{ tool_calls: [{ name: 'evil', args: { [HOSTILE]: HOSTILE } }] }, { text: HOSTILE }]))
    await page.getByRole('button', { name: 'Arguments and result' }).click()
    await page.getByRole('region', { name: 'Result evil' }).getByText('<img src=x onerror=alert(1)>').waitFor()
    assert.equal(await page.locator('main img, main script').count(), 0)
    assert.ok(!(await page.locator('main').innerText()).includes('\u202e'))
    assert.deepEqual(problems, [])
  })

  it('releases a version to a share of the callers, changes the share, and promotes or aborts', async () => {
    const id = await agent({ name: 'Staged', instructions: 'one' })
    await suite.app.admin.patch(`/agents/${id}`, { instructions: 'two' })
    const read = async () => (await suite.app.admin.get(`/agents/${id}`)).body
    const { page, problems } = await open(`agents/${id}?tab=versions`)
    const release = async (button: string, percent: string) => {
      await page.getByRole('button', { name: button }).click()
      const dialog = page.getByRole('dialog')
      await dialog.getByLabel('Share in percent').fill(percent)
      await page.keyboard.press('Enter')
      await page.getByText(`${percent} % of the callers get version 2`).waitFor()
    }
    const confirm = async (name: string) => {
      await page.getByRole('button', { name }).click()
      await page.getByRole('dialog').getByRole('button', { name }).click()
      await page.getByRole('button', { name: 'Start a release' }).waitFor()
    }
    await release('Start a release', '10')
    const { stable_version, canary_version } = (await read()).active_release
    assert.deepEqual([stable_version, canary_version], [1, 2])
    await eventually(async () => (await violations(page)).length === 0)
    await release('Change', '60')
    assert.equal((await read()).active_release.canary_percent, 60)
    await confirm('Abort')
    assert.deepEqual([(await read()).instructions, (await read()).active_release], ['one', null])
    await page.getByText('Version 3', { exact: true }).waitFor()
    await suite.app.admin.put(`/agents/${id}/release`, { stable_version: 1, canary_version: 2, canary_percent: 5 })
    await page.reload()
    await page.getByText('5 % of the callers get version 2').waitFor()
    await confirm('Promote')
    assert.equal((await read()).instructions, 'two')
    assert.deepEqual(problems, [])
  })
})
