import assert from 'node:assert/strict'
import vm from 'node:vm'
import { build } from 'esbuild'
import { signDelivery } from '#control/webhooks/deliver.ts'
import * as client from '../../client/dist/webhooks.js'
import { startChromium } from '../support/chromium.ts'
import { startScripted } from './support.ts'

type Webhooks = typeof client

const SECRET = 'whsec_current'
const OLD = 'whsec_old'
const NOW = Date.parse('2026-03-02T09:30:00Z')
const body = JSON.stringify({ id: 'evt_1', event: 'files.created', data: { name: 'Grüße' } })

/** What the service sends, and the verdict: the event, or the reason of the refusal. */
const signed = (secrets: string[], seconds = 0, text = body) =>
  signDelivery(secrets, text, new Date(NOW + seconds * 1000))
const changed = (header: string): string => header.replace(/.$/, last => (last === '0' ? '1' : '0'))
const VECTORS: {
  name: string
  header: string | null
  secret: string | string[]
  text?: string
  prefix?: string
  verdict: string
}[] = [
  { name: 'good', header: signed([SECRET]), secret: SECRET, verdict: 'files.created' },
  {
    name: 'one byte of the body changed',
    header: signed([SECRET]),
    secret: SECRET,
    text: body.replace('evt_1', 'evt_2'),
    verdict: 'mismatch',
  },
  { name: 'one byte of the signature changed', header: changed(signed([SECRET])), secret: SECRET, verdict: 'mismatch' },
  { name: 'stale', header: signed([SECRET], -301), secret: SECRET, verdict: 'stale' },
  { name: 'at the limit of its age', header: signed([SECRET], -300), secret: SECRET, verdict: 'files.created' },
  { name: 'of the future', header: signed([SECRET], 301), secret: SECRET, verdict: 'stale' },
  { name: 'two signatures, the second good', header: signed([OLD, SECRET]), secret: SECRET, verdict: 'files.created' },
  { name: 'old and new secret', header: signed([OLD]), secret: [SECRET, OLD], verdict: 'files.created' },
  { name: 'another secret', header: signed([OLD]), secret: SECRET, verdict: 'mismatch' },
  { name: 'wrong prefix', header: signed([SECRET]), secret: SECRET, prefix: 'X-Other-', verdict: 'malformed' },
  { name: 'no header', header: null, secret: SECRET, verdict: 'malformed' },
  { name: 'no time', header: signed([SECRET]).replace(/^t=\d+,/, ''), secret: SECRET, verdict: 'malformed' },
  { name: 'no hex', header: 't=1772443800,v1=zz', secret: SECRET, verdict: 'malformed' },
  { name: 'no JSON', header: signed([SECRET], 0, 'text'), secret: SECRET, text: 'text', verdict: 'malformed' },
]

/** Runs the vectors where the functions are; self-contained, for other run times. */
async function verdictsOf(
  { verifyWebhook }: Webhooks,
  vectors: typeof VECTORS,
  now: number,
  text: string,
): Promise<string[]> {
  const verdicts: string[] = []
  for (const vector of vectors) {
    const headers = vector.header === null ? {} : { 'x-svc-signature': vector.header }
    try {
      const event = await verifyWebhook({
        rawBody: vector.text ?? text,
        headers,
        secret: vector.secret,
        now,
        ...(vector.prefix ? { headerPrefix: vector.prefix } : {}),
      })
      verdicts.push(event.event)
    } catch (error) {
      verdicts.push((error as { reason?: string }).reason ?? String(error))
    }
  }
  return verdicts
}

const EXPECTED = VECTORS.map(({ verdict }) => verdict)

/** The functions as one script that sets `webhooks`. */
async function script(): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: ['client/dist/webhooks.js'],
    bundle: true,
    write: false,
    format: 'iife',
    globalName: 'webhooks',
  })
  return `${outputFiles[0].text}\nglobalThis.webhooks = webhooks; globalThis.verdictsOf = ${verdictsOf}`
}

describe('webhooks of the client', function () {
  this.timeout(60_000)

  it('are verified as the service signs them', async () => {
    const verdicts = await verdictsOf(client, VECTORS, NOW, body)
    for (const [index, { name, verdict }] of VECTORS.entries()) assert.equal(verdicts[index], verdict, name)
  })

  it('are verified in a plain V8 context with nothing but web standards', async () => {
    const context = vm.createContext({ crypto, TextEncoder, TextDecoder, vectors: VECTORS, now: NOW, body })
    vm.runInContext(await script(), context)
    const verdicts = await vm.runInContext('verdictsOf(webhooks, vectors, now, body)', context)
    assert.deepEqual([...verdicts], EXPECTED)
  })

  it('are verified in Chromium', async function () {
    const browser = await startChromium()
    if (!browser) return this.skip()
    // Web Crypto exists only on pages of a trusted address.
    const server = await startScripted({ headers: { 'content-type': 'text/html' }, body: '<p>page</p>' })
    try {
      const page = await browser.newPage()
      await page.goto(server.url)
      await page.addScriptTag({ content: await script() })
      const verdicts = await page.evaluate(
        ([vectors, now, text]) => (globalThis as any).verdictsOf((globalThis as any).webhooks, vectors, now, text),
        [VECTORS, NOW, body] as const,
      )
      assert.deepEqual(verdicts, EXPECTED)
    } finally {
      await browser.close()
      await server.close()
    }
  })

  it('take bytes, text and the headers of fetch and of Node, and no parsed body', async () => {
    const header = signed([SECRET])
    const bytes = new TextEncoder().encode(`..${body}`).subarray(2)
    for (const rawBody of [body, bytes, Buffer.from(body), bytes.slice().buffer])
      for (const headers of [new Headers({ 'X-Svc-Signature': header }), { 'x-svc-signature': [header] }])
        assert.equal((await client.verifyWebhook({ rawBody, headers, secret: SECRET, now: NOW })).id, 'evt_1')
    const parsed = { rawBody: JSON.parse(body), headers: { 'x-svc-signature': header }, secret: SECRET, now: NOW }
    await assert.rejects(client.verifyWebhook(parsed), TypeError)
  })

  it('are signed as the service signs them', async () => {
    const headers = await client.signWebhook({ rawBody: body, secret: [OLD, SECRET], now: NOW })
    assert.deepEqual(headers, { 'X-Svc-Signature': signed([OLD, SECRET]) })
  })
})
