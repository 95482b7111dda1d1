import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import fs from 'node:fs'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import path from 'node:path'
import { build } from 'esbuild'
import type { Browser as Chromium, Page } from 'playwright-core'
import { endUser } from '../conversation/end-user-support.ts'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { json, startTarget, type Target } from '../execution/tool-target.ts'
import { openPage, startChromium } from '../support/chromium.ts'
import { calls, said } from './ag-ui-support.ts'
import { chatUrl } from './ui-support.ts'

const root = path.resolve(import.meta.dirname, '../..')
const guide = fs.readFileSync(path.join(root, 'docs/ai-sdk.md'), 'utf8')

/** Shows the component of the guide with the settings in the address of the page. */
const PAGE = `
import { createRoot } from 'react-dom/client'
import { Chat, loadMessages } from 'guide'
const address = Object.fromEntries(new URLSearchParams(location.hash.slice(1)))
const initial = await loadMessages(address)
createRoot(document.body).render(<Chat {...address} initial={initial} />)
`

/** Bundles the component of the guide with the packages as they are published. */
async function bundlePage(): Promise<string> {
  const [, component] = /^```tsx chat\.tsx\n(.*?)^```$/ms.exec(guide) as RegExpExecArray
  const result = await build({
    stdin: { contents: PAGE, loader: 'tsx', resolveDir: root },
    bundle: true,
    write: false,
    format: 'esm',
    jsx: 'automatic',
    define: { 'process.env.NODE_ENV': '"production"' },
    logLevel: 'warning',
    plugins: [
      {
        name: 'guide',
        setup({ onResolve, onLoad }) {
          onResolve({ filter: /^guide$/ }, () => ({ path: 'guide', namespace: 'guide' }))
          onLoad({ filter: /.*/, namespace: 'guide' }, () => ({ contents: component, loader: 'tsx', resolveDir: root }))
        },
      },
    ],
  })
  return result.outputFiles[0].text
}

describe('the page of the guide to the AI SDK, in a browser', function () {
  this.timeout(60_000)
  let chromium: Chromium | null
  let app: SessionApp
  let target: Target
  let server: http.Server
  let origin: string
  let agentId: string
  const half = { when: { call: 1 }, reply: { text: 'half of the answer', gate: 'browser', gate_after: 1 } }

  before(async function () {
    chromium = await startChromium()
    if (!chromium) return this.skip()
    const script = await bundlePage()
    server = http.createServer((request, response) => {
      const isScript = request.url === '/page.js'
      response.writeHead(200, { 'content-type': isScript ? 'text/javascript' : 'text/html; charset=utf-8' })
      response.end(
        isScript
          ? script
          : '<!doctype html><link rel="icon" href="data:,"><body><script type="module" src="/page.js"></script>',
      )
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    target = await startTarget()
    target.answer = json({ refunded: true })
    app = await startSessionApp({
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', CORS_ALLOWED_ORIGINS: origin },
      actions: ['actors:*', 'agents:*', 'approvals:*', 'generations:*', 'guardrails:*', 'sessions:*'],
    })
    const document = { class: 'C', approver: 'end_user', end_user_arguments: ['amount'] }
    const rule = await app.key.post('/guardrails', { name: 'rule', document })
    agentId = await app.agent({
      guardrail_ids: [rule.body.id],
      tool_bindings: [{ tool: { name: 'refund', execute: { method: 'POST', url: `${target.url}/refund` } } }],
    })
  })
  after(async () => {
    await chromium?.close()
    await app?.close()
    await target?.close()
    server?.close()
  })

  const open = async (agent: string, id: string = randomUUID()) => {
    const { token } = await endUser(app, { agent_ids: [agent], scopes: ['chat', 'approvals'] })
    const watched = await openPage(chromium as Chromium, [origin, app.url])
    const address = new URLSearchParams({ api: chatUrl(app, agent), token, id })
    await watched.page.goto(`${origin}/#${address}`)
    await watched.page.getByLabel('Message').waitFor()
    return watched
  }
  const say = async (page: Page, text: string) => {
    await page.getByLabel('Message').fill(text)
    await page.getByRole('button', { name: 'Send' }).click()
  }
  const answers = (page: Page) => page.locator('article[data-role=assistant]')

  it('chats, regenerates, and lets the end user decide', async () => {
    const { page, problems, close } = await open(agentId)
    await say(page, said({ text: 'Good day.' }))
    await answers(page).getByText('Good day.').waitFor()
    await page.getByRole('button', { name: 'Again' }).click()
    await page.getByRole('button', { name: 'Again', disabled: false }).waitFor()
    assert.equal(await answers(page).count(), 1)
    await say(page, said(calls('refund', { amount: 5, account: 'secret-1' }), { text: 'It waits.' }))
    await page.getByText('Confirmation required: {"amount":5}').waitFor()
    assert.equal(target.requests.length, 0)
    await page.getByRole('button', { name: 'Allow' }).click()
    await page.getByRole('button', { name: 'Allow' }).waitFor({ state: 'detached' })
    await page.getByRole('button', { name: 'Again', disabled: false }).waitFor()
    assert.equal(target.requests.length, 1)
    await page.reload()
    await answers(page).getByText('It waits.').waitFor()
    await say(page, said({ error: { status: 400, message: 'hidden vendor text' } }))
    await page.getByRole('alert').waitFor()
    assert.equal((await page.getByRole('alert').innerText()).includes('hidden'), false)
    assert.deepEqual(problems, [])
    await close()
  })

  it('continues a running answer after a reload, and stops one', async () => {
    const stopped = { when: { call: 2 }, reply: { text: 'never seen whole', gate: 'stopped', gate_after: 1 } }
    const slow = await app.scripted([half, stopped, { reply: { text: 'quick' } }] as any)
    const { page, problems, close } = await open(slow.agentId)
    await say(page, 'slow')
    await app.atGate('browser')
    await answers(page).waitFor()
    await page.reload()
    await answers(page).waitFor()
    await app.openGate('browser')
    await answers(page).getByText('half of the answer').waitFor()
    assert.equal(await answers(page).count(), 1)
    await say(page, 'stopped')
    await app.atGate('stopped')
    await page.getByRole('button', { name: 'Stop' }).click()
    await page.getByRole('button', { name: 'Again', disabled: false }).waitFor()
    await say(page, 'now')
    await answers(page).getByText('quick').waitFor()
    assert.deepEqual(problems, [])
    await close()
  })
})
