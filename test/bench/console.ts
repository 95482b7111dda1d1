import { pathToFileURL } from 'node:url'
import type { Browser, CDPSession, Page } from 'playwright-core'
import {
  addApprovals,
  type ConsoleApp,
  go,
  openConsole,
  setOutput,
  signIn,
  startConsoleApp,
} from '../console/support.ts'
import { client as doubleClient } from '../local/double/client.ts'
import { eventually } from '../support/app.ts'
import { openPage, startChromium } from '../support/chromium.ts'
import { testEnvironment } from '../support/environment.ts'
import { allowing } from '../support/oauth.ts'
import { quietPort } from '../support/postgres.ts'
import { start } from './http.ts'
import { median, percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * The built console in Chromium against its budgets: a web process, a worker process, and a floor,
 * which is a page of a few bytes from the same web process. Usage: node test/bench/run.ts console
 */
const LOADS = 5
const SLOWER = 4
const ROUND_TRIP_MS = 100

/** A streamed reply of 50 pieces a second, and how long it takes. */
const PIECE_MS = 20
const STREAM_SECONDS = 20

const NODES = 500
/** Nodes of the run that follow one another; the rest is next to them. */
const DEPTH = 25

/** Events of an hour of replies, sent without the pauses between them. */
const REPLIES = 40
const PIECES = 500

const APPROVALS = 10_000
/** Rows of 1 KB. */
const OUTPUT_ROWS = 20_000

/** Measures in the page. `until` resolves in the first frame in which a condition holds. */
const PROBE = `(() => {
  const durations = new Map()
  new PerformanceObserver(list => {
    for (const { interactionId, duration } of list.getEntries())
      if (interactionId) durations.set(interactionId, Math.max(durations.get(interactionId) ?? 0, duration))
  }).observe({ type: 'event', durationThreshold: 16, buffered: true })
  let blocked = []
  new PerformanceObserver(list => blocked.push(...list.getEntries().map(({ duration }) => duration)))
    .observe({ type: 'long-animation-frame' })
  const isLoaded = () => {
    const main = document.querySelector('main')
    return main !== null && main.querySelector('h1') !== null &&
      main.querySelector('[aria-label=Loading], .mantine-Skeleton-root') === null
  }
  let frames = []
  let isRecording = false
  const next = () => new Promise(requestAnimationFrame)
  globalThis.probe = {
    isLoaded,
    async until(holds) {
      while (!holds()) await next()
      return performance.now()
    },
    /** Time from a click on a link until the view of the link is drawn with its data; null for the current view. */
    async change(link) {
      if (link.ariaCurrent === 'page') return null
      const before = document.querySelector('main h1')
      const from = performance.now()
      link.click()
      return await probe.until(() => document.querySelector('main h1') !== before && isLoaded()) - from
    },
    async record() {
      blocked = []
      frames = []
      isRecording = true
      for (let last = await next(); isRecording; ) {
        const now = await next()
        frames.push(now - last)
        last = now
      }
    },
    recorded() {
      isRecording = false
      return { frames, blocked }
    },
    /** Time to the next paint of each interaction; those below the threshold of the browser count as the threshold. */
    interactions() {
      const all = [...durations.values()]
      return all.concat(Array(Math.max(0, performance.interactionCount - all.length)).fill(16))
    },
  }
})()`

/** The time at which the overview is usable, in a page that may be any step of the sign-in. */
const USABLE = `globalThis.usable = probe.until(() =>
  document.querySelector('main h1')?.textContent === 'Overview' && probe.isLoaded() &&
  document.querySelectorAll('nav a').length > 5)`

/** Reports the first paint of each page. */
const PAINT = `new PerformanceObserver(list => {
  for (const { name, startTime } of list.getEntries()) if (name === 'first-paint') reportPaint(startTime)
}).observe({ type: 'paint', buffered: true })`

type Conditions = { slower?: number; roundTripMs?: number }

async function emulate(cdp: CDPSession, { slower = 1, roundTripMs = 0 }: Conditions): Promise<void> {
  await cdp.send('Emulation.setCPUThrottlingRate', { rate: slower })
  await cdp.send('Network.emulateNetworkConditions', {
    offline: false,
    latency: roundTripMs,
    downloadThroughput: -1,
    uploadThroughput: -1,
  })
}

/**
 * Times of a browser with an empty cache: the first paint of the page that leads to the sign-in, and the overview, from
 * the redirect with which the sign-in ends. The floor is the paint of a page of a few bytes.
 */
async function firstLoad(
  chromium: Browser,
  { base, projectId }: ConsoleApp,
  conditions: Conditions,
): Promise<{ paint: number; usable: number; floor: number }> {
  const { page, close } = await openPage(chromium, [base])
  try {
    const cdp = await page.context().newCDPSession(page)
    const paints: number[] = []
    await page.exposeFunction('reportPaint', (ms: number) => void paints.push(ms))
    await page.addInitScript(`${PROBE};${USABLE};${PAINT}`)
    await emulate(cdp, conditions)
    await page.goto(`${base}/healthz`)
    await eventually(() => paints.length === 1)
    await page.goto(`${base}/app/p/${projectId}/overview`)
    await signIn(page, 'ada')
    await page.waitForURL('**/overview')
    const usable = (await page.evaluate('usable')) as number
    const [floor, paint] = paints
    return { paint, usable, floor }
  } finally {
    await close()
  }
}

/** Requests and compressed bytes from the first address to the overview. */
async function weigh(chromium: Browser, { base, projectId }: ConsoleApp) {
  const { page, close } = await openPage(chromium, [base], { extraHTTPHeaders: { 'accept-encoding': 'gzip' } })
  try {
    const cdp = await page.context().newCDPSession(page)
    await cdp.send('Network.enable')
    const weight = { requests: 0, files: 0, all: 0 }
    const files = new Set<string>()
    page.on('request', () => weight.requests++)
    cdp.on('Network.requestWillBeSent', ({ requestId, request }) => {
      if (request.url.startsWith(`${base}/app/assets/`)) files.add(requestId)
    })
    cdp.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
      weight.all += encodedDataLength
      if (files.has(requestId)) weight.files += encodedDataLength
    })
    await page.goto(`${base}/app/p/${projectId}/overview`)
    await signIn(page, 'ada')
    await page.waitForURL('**/overview')
    await page.waitForLoadState('networkidle')
    return weight
  } finally {
    await close()
  }
}

/** Frames while something happens: the interval that 95 of 100 keep, and the frames above 50 ms. */
async function framesDuring(
  page: Page,
  work: () => Promise<unknown>,
): Promise<{ p95: number; count: number; blocked: number[] }> {
  await page.evaluate('void probe.record()')
  await work()
  const { frames, blocked } = (await page.evaluate('probe.recorded()')) as { frames: number[]; blocked: number[] }
  return { p95: percentile(frames, 0.95), count: frames.length, blocked: blocked.filter(ms => ms > 50) }
}

const framesRow = (
  what: string,
  { p95, count, blocked }: Awaited<ReturnType<typeof framesDuring>>,
  floor: number,
  more = '',
): Row => ({
  what: `${what}: interval of frames, p95`,
  value: rounded(p95),
  unit: 'ms',
  target: '<= 50',
  note: `${rounded(p95 / floor)} x an empty page; ${blocked.length} of ${count} frames above 50 ms${
    blocked.length > 0 ? `, longest ${Math.round(Math.max(...blocked))}` : ''
  }${more}`,
})

async function made(app: ConsoleApp, path: string, body: object): Promise<string> {
  const answer = await app.admin.post(path, { project_id: app.projectId, ...body })
  if (answer.status !== 201) throw new Error(`${path} answered ${answer.status}: ${JSON.stringify(answer.body)}`)
  return answer.body.id
}

/** A session whose agent replies with words, one a piece. */
async function talkative(app: ConsoleApp, name: string, words: number, delayMs: number): Promise<string> {
  const text = Array.from({ length: words }, (_, n) => `word${n}`).join(' ')
  await doubleClient(app.double).put(name, {
    rules: [{ reply: { text, chunk_words: 1, chunk_delay_ms: delayMs } }],
  })
  const agent_id = await made(app, '/agents', { name, ai_provider_id: app.providerId, model: `${name}/m` })
  return made(app, '/sessions', { agent_id, name, auto_generate: true })
}

/** Sends a message and waits until the session has its reply. */
async function reply(app: ConsoleApp, session: string, position: number): Promise<void> {
  await app.admin.post(`/sessions/${session}/messages`, { message: 'go on' })
  await eventually(
    async () => (await app.admin.get(`/sessions/${session}/messages?limit=1`)).body.total >= position * 2,
    { within: 120_000 },
  )
}

/** The frames of the stream of a session during a reply. */
async function framesOfReply(app: ConsoleApp, session: string): Promise<string[]> {
  const controller = new AbortController()
  const response = await fetch(`${app.base}/api/v1/sessions/${session}/stream`, {
    headers: { authorization: `Bearer ${app.admin.token}` },
    signal: controller.signal,
  })
  await app.admin.post(`/sessions/${session}/messages`, { message: 'go on' })
  let text = ''
  for await (const part of (response.body as ReadableStream<Uint8Array<ArrayBuffer>>).pipeThrough(
    new TextDecoderStream(),
  )) {
    text += part
    if (text.includes('event: turn_completed') && text.endsWith('\n\n')) break
  }
  controller.abort()
  return text.split('\n\n').map(frame => frame.replace(/^id: .*\n/, ''))
}

/** The stream of an hour of replies, made of the frames of one; each message is another one. */
function hourOf(frames: readonly string[]): string[] {
  const [ready, ...turn] = frames.filter(frame => /^event: (ready|message|turn_started|turn_completed)/.test(frame))
  const delta = frames.find(frame => frame.startsWith('event: delta')) as string
  const at = turn.findIndex(frame => frame.startsWith('event: turn_started')) + 1
  const reply = [...turn.slice(0, at), ...Array<string>(PIECES).fill(delta), ...turn.slice(at)]
  const replies = Array.from({ length: REPLIES }, (_, n) =>
    reply.map(frame => frame.replace(/"document_id":"doc_/, `"document_id":"doc_${n}`)),
  )
  return [ready, ...replies.flat()]
}

/** A run of many nodes that begins when a person answers. */
async function largeRun(app: ConsoleApp): Promise<string> {
  const steps = Array.from({ length: NODES - 1 }, (_, n) =>
    n % 3 === 0
      ? { id: `n${n}`, type: 'delay', duration: '500ms' }
      : { id: `n${n}`, type: 'transform', expression: { '+': [n, 1] } },
  )
  const edges = steps.map(({ id }, n) => ({ from: n % DEPTH === 0 ? 'gate' : `n${n - 1}`, to: id }))
  const orchestration_id = await made(app, '/orchestrations', {
    name: 'Large',
    nodes: [{ id: 'gate', type: 'human' }, ...steps],
    edges,
  })
  return made(app, '/orchestration-runs', { orchestration_id, wait: true })
}

/** A run whose only node has an output of 20 MB. */
async function bulkyRun(app: ConsoleApp): Promise<string> {
  const orchestration_id = await made(app, '/orchestrations', {
    name: 'Bulky',
    nodes: [{ id: 'bulk', type: 'transform', expression: 1 }],
    edges: [],
  })
  const id = await made(app, '/orchestration-runs', { orchestration_id, wait: true })
  await setOutput(app, id, OUTPUT_ROWS)
  return id
}

/** Opens a view as a link does; returns the milliseconds until a condition holds in the page. */
async function timeToOpen(page: Page, at: string, condition: string): Promise<number> {
  await page.evaluate('globalThis.from = performance.now()')
  await go(page, at)
  return (await page.evaluate(`probe.until(() => ${condition}).then(at => at - from)`)) as number
}

/** Types, clicks and opens menus in views with forms, lists and dialogs. */
async function useByHand(page: Page, at: (view: string) => string, agentId: string): Promise<void> {
  const type = (text: string) => page.keyboard.type(text, { delay: 30 })
  await go(page, at('agents'))
  await page.getByLabel('Find by name').click()
  await type('helper of customers')
  await go(page, at(`agents/${agentId}`))
  await page.getByRole('button', { name: 'Edit' }).click()
  await page.getByLabel('Instructions').click()
  await type('Answer in one sentence, and name the source of each fact.')
  await go(page, at('playground'))
  await page.getByLabel('Message').click()
  await type('Where is my order?')
  await page.keyboard.press('Enter')
  await page.getByRole('article').getByText('Total').waitFor()
  await page.getByRole('button', { name: 'Go to' }).click()
  await page.getByLabel('Type to find a view or a project').click()
  await type('webhooks')
  await page.getByRole('option', { name: 'Webhooks' }).click()
  for (const name of ['Sessions', 'Inbox', 'Runs', 'Audit log', 'Policies', 'Overview']) {
    await page.getByRole('navigation').getByRole('link', { name }).click()
    await page.evaluate('probe.until(probe.isLoaded)')
  }
  await page.getByRole('button', { name: 'Account' }).click()
  await page.getByRole('menuitem', { name: 'Dark' }).click()
}

type Bench = { chromium: Browser; app: ConsoleApp; page: Page; cdp: CDPSession; at: (view: string) => string }

async function measureLoads({ chromium, app }: Pick<Bench, 'chromium' | 'app'>): Promise<Row[]> {
  const { requests, files, all } = await weigh(chromium, app)
  const loads = async (conditions: Conditions) => {
    const all: Awaited<ReturnType<typeof firstLoad>>[] = []
    for (let n = 0; n < LOADS; n++) all.push(await firstLoad(chromium, app, conditions))
    const floor = median(all.map(load => load.floor))
    const row = (what: string, part: 'paint' | 'usable', target: string): Row => {
      const times = all.map(load => load[part])
      const note = `${rounded(median(times) / floor)} x an empty page; ${times.map(time => Math.round(time)).join(', ')}`
      return { what, value: Math.round(median(times)), unit: 'ms', target, note }
    }
    return row
  }
  const slow = await loads({ slower: SLOWER })
  const far = await loads({ roundTripMs: ROUND_TRIP_MS })
  return [
    { what: 'first load, sign-in to overview: requests', value: requests, unit: '', target: '<= 45' },
    {
      what: 'first load: scripts and styles, gzip',
      value: rounded(files / 1024),
      unit: 'KB',
      target: '<= 300',
      note: `${Math.round(all / 1024)} KB with the sign-in page and the answers of the API`,
    },
    slow(`first paint, processor ${SLOWER} x slower`, 'paint', '<= 800'),
    slow(`usable, processor ${SLOWER} x slower`, 'usable', '<= 1500'),
    far(`usable, round trip ${ROUND_TRIP_MS} ms`, 'usable', '<= 2500'),
  ]
}

async function measureViews({ page }: Bench): Promise<Row[]> {
  const links = page.getByRole('navigation').getByRole('link')
  await links.first().waitFor()
  await page.evaluate('probe.until(probe.isLoaded)')
  const names = await links.allInnerTexts()
  const changes = async () => {
    const all: { name: string; ms: number }[] = []
    for (const [index, name] of names.entries()) {
      const ms = (await page.evaluate(`probe.change(document.querySelectorAll('nav a')[${index}])`)) as number | null
      if (ms !== null) all.push({ name, ms })
    }
    return all
  }
  const middle = (all: { ms: number }[]) => Math.round(median(all.map(({ ms }) => ms)))
  const [first, second] = [await changes(), await changes()]
  const slowest = first.toSorted((one, other) => other.ms - one.ms)[0]
  return [
    {
      what: `change of view, median of ${first.length}`,
      value: middle(first),
      unit: 'ms',
      target: '<= 300',
      note: `${middle(second)} for the second time; slowest ${slowest.name} ${Math.round(slowest.ms)}`,
    },
  ]
}

async function measureInput({ page, at, app }: Bench): Promise<Row[]> {
  await useByHand(page, at, app.agentId)
  const times = (await page.evaluate('probe.interactions()')) as number[]
  return [
    {
      what: `input to next paint, p95 of ${times.length}`,
      value: percentile(times, 0.95),
      unit: 'ms',
      target: '<= 100',
      note: `median ${median(times)}, longest ${Math.max(...times)}`,
    },
  ]
}

async function measureStream({ page, at, app }: Bench, floor: number): Promise<Row[]> {
  const session = await talkative(app, 'streaming', (STREAM_SECONDS * 1000) / PIECE_MS, PIECE_MS)
  await go(page, at(`sessions/${session}`))
  await page.getByText('Live', { exact: true }).waitFor()
  const frames = await framesDuring(page, () => reply(app, session, 1))
  return [framesRow(`reply of ${1000 / PIECE_MS} pieces a second`, frames, floor)]
}

async function measureRun({ page, at, app }: Bench, floor: number): Promise<Row[]> {
  const id = await largeRun(app)
  const drawn = `document.querySelector('.graph-node') !== null`
  const opened = await timeToOpen(page, at(`runs/${id}`), drawn)
  await page.getByText('Live', { exact: true }).waitFor()
  const frames = await framesDuring(page, async () => {
    await app.admin.post(`/orchestration-runs/${id}/human-input`, { node_id: 'gate', output: {}, wait: false })
    // Without a request to the page, which would take part of its frames.
    await eventually(async () => (await app.admin.get(`/orchestration-runs/${id}`)).body.status === 'succeeded', {
      within: 120_000,
      every: 500,
    })
    await page.getByRole('status').getByText('Succeeded').waitFor()
  })
  return [framesRow(`run of ${NODES} nodes`, frames, floor, `; opens in ${Math.round(opened)} ms`)]
}

async function measureHeap({ page, cdp, at, app }: Bench): Promise<Row[]> {
  const session = await talkative(app, 'hour', PIECES, 0)
  const events = hourOf(await framesOfReply(app, session))
  const messages = page.getByText('go on')
  await page.route(
    `**/sessions/${session}/stream**`,
    async route => {
      // Events change a transcript that has been read.
      await messages.first().waitFor()
      await route.fulfill({ contentType: 'text/event-stream', body: `${events.join('\n\n')}\n\n` })
    },
    { times: 1 },
  )
  await go(page, at(`sessions/${session}`))
  await messages.nth(REPLIES).waitFor()
  await cdp.send('HeapProfiler.collectGarbage')
  const { usedSize } = await cdp.send('Runtime.getHeapUsage')
  return [
    {
      what: 'heap of a live session after an hour of replies',
      value: rounded(usedSize / 1e6),
      unit: 'MB',
      target: '< 80',
      note: `${events.length} events of ${REPLIES} replies, replayed without pauses`,
    },
  ]
}

async function measureInbox({ page, at, app }: Bench, floor: number): Promise<Row[]> {
  await addApprovals(app, APPROVALS)
  const opened = await timeToOpen(page, at('inbox'), `document.querySelectorAll('article').length > 0`)
  await page.mouse.move(700, 500)
  const frames = await framesDuring(page, async () => {
    for (let n = 0; n < 100; n++) await page.mouse.wheel(0, 100)
  })
  return [
    { what: `inbox of ${APPROVALS} approvals: opens`, value: Math.round(opened), unit: 'ms', target: '<= 1000' },
    framesRow('inbox while it scrolls', frames, floor),
  ]
}

async function measureOutput({ page, at, app }: Bench): Promise<Row[]> {
  const id = await bulkyRun(app)
  const has = (text: string) =>
    `[...document.querySelectorAll('button')].some(({ textContent }) => textContent === '${text}')`
  // A browser keeps a limited number of them.
  await page.evaluate('performance.clearResourceTimings()')
  const opened = await timeToOpen(page, at(`runs/${id}?node=bulk`), has('Download'))
  const answer = (await page.evaluate(`performance.getEntriesByType('resource')
    .findLast(({ name }) => name.includes('/orchestration-runs/${id}')).duration`)) as number
  await page.evaluate('globalThis.from = performance.now()')
  await page.getByRole('button', { name: 'Open whole' }).click()
  const whole = (await page.evaluate(
    `probe.until(() => document.querySelectorAll('[role=dialog] code').length > 20).then(at => at - from)`,
  )) as number
  return [
    {
      what: 'node output of 20 MB: opens with its download',
      value: Math.round(opened),
      unit: 'ms',
      target: '<= 1000',
      note: `${Math.round(answer)} of it the answer of the API; lines of the text ${Math.round(whole)} after a click`,
    },
  ]
}

async function measure(chromium: Browser, app: ConsoleApp): Promise<Row[]> {
  const loads = await measureLoads({ chromium, app })
  const { page, close } = await openConsole(chromium, app, `/p/${app.projectId}/start`, 'ada')
  try {
    await page.context().addInitScript(PROBE)
    await page.evaluate(PROBE)
    const cdp = await page.context().newCDPSession(page)
    const blank = await page.context().newPage()
    await blank.goto(`${app.base}/healthz`)
    const floor = (await framesDuring(blank, () => blank.waitForTimeout(5000))).p95
    await blank.close()
    const bench: Bench = { chromium, app, page, cdp, at: view => `/p/${app.projectId}/${view}` }
    return [
      ...loads,
      ...(await measureViews(bench)),
      ...(await measureInput(bench)),
      ...(await measureStream(bench, floor)),
      ...(await measureRun(bench, floor)),
      ...(await measureHeap(bench)),
      ...(await measureInbox(bench, floor)),
      ...(await measureOutput(bench)),
    ]
  } finally {
    await close()
  }
}

export async function run(): Promise<Row[]> {
  const chromium = await startChromium()
  if (!chromium) return []
  const port = await quietPort()
  const base = `http://127.0.0.1:${port}`
  const app = await startConsoleApp(['generation', 'orchestration'])
  try {
    const web = await start('src/web.ts', { ...testEnvironment(app.databaseUrl), PORT: String(port), BASE_URL: base })
    web.child.stdout?.resume()
    try {
      const { id } = await app.user('ada', [allowing(app.projectId)])
      await app.admin.patch(`/users/${id}`, { role: 'admin' })
      return await measure(chromium, { ...app, base })
    } finally {
      web.child.kill()
    }
  } finally {
    await chromium.close()
    await app.close()
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run())
  process.exit(0)
}
