import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import type { Browser, BrowserContextOptions, Locator, Page } from 'playwright-core'
import { voidStatement } from '#core/db/sql.ts'
import { type Double, startDouble } from '#local/double/server.ts'
import { openPage, startChromium, type Watched } from '../support/chromium.ts'
import { allowing, type OauthApp, startOauthApp } from '../support/oauth.ts'

export const PASSWORD = 'a fine password'
const axe = fs.readFileSync(path.resolve(import.meta.dirname, '../../node_modules/axe-core/axe.min.js'), 'utf8')

export type ConsoleApp = OauthApp & { double: Double; projectId: string; providerId: string; agentId: string }

/** A deployment whose address serves the console, with a project, a provider on the model double, and an agent. */
export async function startConsoleApp(
  workers: NonNullable<Parameters<typeof startOauthApp>[0]>['workers'] = ['generation'],
): Promise<ConsoleApp> {
  const double = await startDouble({})
  const app = await startOauthApp({ workers, env: { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: '256' } })
  const { body: project } = await app.admin.post('/projects', { name: 'Atlas' })
  const { body: provider } = await app.admin.post('/ai-providers', {
    project_id: project.id,
    name: 'double',
    provider: 'custom',
    default_model: 'double-1',
    base_url: `${double.url}/v1`,
  })
  const agent = { project_id: project.id, name: 'Helper', instructions: 'Be brief.', ai_provider_id: provider.id }
  const { body: made } = await app.admin.post('/agents', agent)
  return {
    ...app,
    double,
    projectId: project.id,
    providerId: provider.id,
    agentId: made.id,
    async close() {
      await app.close()
      await double.close()
    },
  }
}

/** Signs in on the page to which the console sends a browser. */
export async function signIn(page: Page, username: string, password = PASSWORD): Promise<void> {
  await page.waitForURL('**/oauth/consent**')
  await page.getByLabel('Username').fill(username)
  await page.locator('input[name=password]').fill(password)
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
}

/** Opens an address of the console and signs in there. */
export async function openConsole(
  chromium: Browser,
  app: Pick<ConsoleApp, 'base'>,
  at: string,
  username: string,
  { hasClock = false, ...options }: BrowserContextOptions & { hasClock?: boolean } = {},
): Promise<Watched> {
  const watched = await openPage(chromium, [app.base], options)
  // A clock starts at 0 for a moment: input that a page notes then is years old, and its user is signed out.
  if (hasClock) await watched.page.clock.install()
  await watched.page.goto(`${app.base}/app${at}`)
  await signIn(watched.page, username)
  await watched.page.waitForURL(`**/app${at || '/p/**'}`)
  return watched
}

/** Adds approvals that wait, each of a separate tool: `tool_1` is the last of the inbox. */
export const addApprovals = ({ services, projectId, agentId }: ConsoleApp, count: number): Promise<unknown> =>
  services.pool.query(voidStatement`
    insert into approvals (id, project_id, origin, status, proposed_action, expires_at, generation_id, agent_id)
    select 'apr_' || lpad(n::text, 26, '0'), ${projectId}, 'tool_call', 'pending',
      json_build_object('tool_id', null, 'tool_name', 'tool_' || n, 'arguments', json_build_object('n', n)),
      now() + interval '1 day', 'gen_00000000000000000000000001', ${agentId}
    from generate_series(1, ${count}) n`)

/** Replaces the outputs of the nodes of a run by rows of 1 KB. */
export const setOutput = ({ services }: ConsoleApp, runId: string, rows: number): Promise<unknown> =>
  services.pool.query(voidStatement`
    update orchestration_node_executions
    set output = (select json_agg(json_build_object('row', n, 'text', repeat('x', 1024)))
      from generate_series(1, ${rows}) n)
    where run_id = ${runId}`)

/**
 * Goes to another address as a link of the console does, without a reload, and returns when its view is shown in place of
 * the one before, which stays while a script loads.
 */
export const go = (page: Page, at: string): Promise<void> =>
  page.evaluate(`new Promise(done => {
    history.pushState({}, '', ${JSON.stringify(`/app${at}`)})
    dispatchEvent(new PopStateEvent('popstate'))
    const look = () => {
      const { status, location, resolvedLocation } = __TSR_ROUTER__.state
      if (status === 'idle' && resolvedLocation?.href === location.href) done()
      else requestAnimationFrame(look)
    }
    requestAnimationFrame(look)
  })`)

/**
 * Puts the focus on a control; in a dialog not before the dialog, which opens, has put it where it begins. A dialog whose
 * content changes may hold no focus.
 */
export async function focusOn(control: Locator): Promise<void> {
  await control.evaluate(
    (element: any) =>
      new Promise<void>(done => {
        const { document, requestAnimationFrame } = globalThis as any
        const dialog = element.closest('[role=dialog]')
        let frames = 120
        const look = () =>
          !dialog || dialog.contains(document.activeElement) || frames-- === 0 ? done() : requestAnimationFrame(look)
        look()
      }),
  )
  await control.focus()
}

/** Activates a button or a link, or submits the form of a field, with the keyboard. */
export async function pressEnter(control: Locator): Promise<void> {
  await focusOn(control)
  await control.press('Enter')
}

/** Chooses an option, with the keyboard alone, of the control that has the focus. */
export async function choose(page: Page, name: string): Promise<void> {
  await page.keyboard.press('ArrowDown')
  const option = page.getByRole('option', { name })
  await option.waitFor()
  for (let count = 0; (await option.getAttribute('data-combobox-selected')) === null; count++) {
    assert.ok(count < 50, `no option ${name} is reached`)
    await page.keyboard.press('ArrowDown')
  }
  await page.keyboard.press('Enter')
}

/** Moves the focus with the keyboard to the control of a name. */
export async function tabTo(page: Page, name: string): Promise<void> {
  const focused = `(() => {
    const { activeElement: at } = document
    return [at?.getAttribute('aria-label'), at?.labels?.[0]?.textContent, at?.textContent]
      .filter(Boolean).map(text => text.replace(/ \\*$/, '').trim())
  })()`
  for (let count = 0; count < 120; count++) {
    await page.keyboard.press('Tab')
    if (((await page.evaluate(focused)) as string[]).includes(name)) return
  }
  assert.fail(`no control ${name} is reached with Tab`)
}

/** Violations of WCAG 2.2, level A or AA, on the current page. */
export async function violations(page: Page): Promise<string[]> {
  if (!(await page.evaluate('Boolean(globalThis.axe)'))) await page.evaluate(axe)
  return page.evaluate(`axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }).then(
    ({ violations }) => violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => id + ': ' + html.slice(0, 200))))`)
}

/** A text that would run, load or mislead in a page which takes it for more than a text. */
export const HOSTILE = `<img src=x onerror=alert(1)></script><script>alert(1)</script>{{7*7}}\${7*7} javascript:alert(1) \u202egpj.exe`

/** Waits for two frames and the end of transitions, in which colors have another contrast. */
const STILL = `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))).then(() =>
  Promise.allSettled(document.getAnimations()
    .filter(({ effect }) => effect.getComputedTiming().endTime !== Infinity)
    .map(({ finished }) => finished)))
  .then(() => {})`

/** Fails unless the shown view is accessible in both color schemes, on a screen and on a phone. */
export async function checkShown(page: Page, view: string): Promise<void> {
  for (const width of [1280, 360]) {
    await page.setViewportSize({ width, height: 800 })
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme })
      await page.locator(`html[data-mantine-color-scheme=${colorScheme}]`).waitFor({ state: 'attached' })
      await page.evaluate(STILL)
      assert.deepEqual(await violations(page), [], `${view} ${colorScheme} ${width}`)
    }
    assert.equal(await page.evaluate('document.documentElement.scrollWidth'), width, view)
  }
}

/** What the tests of a suite use. */
export type ConsoleSuite = {
  chromium: Browser
  app: ConsoleApp
  /** The path of a view in the project, below /app. */
  at(view: string): string
  /**
   * Opens a view in a new tab of ada's browser, who may do everything in the project, or is an admin; it closes after
   * the test.
   */
  open(
    view: string,
    options?: { width?: number; colorScheme?: 'light' | 'dark' },
  ): Promise<{ page: Page; problems: string[] }>
  /** Closes something after the test. */
  closeLater(what: { close(): Promise<unknown> }): void
  /** Waits for the heading of a view. */
  heading(page: Page, name: string): Promise<void>
  /**
   * Fails unless views, given with their headings, are accessible in both color schemes, on a screen and on a phone.
   */
  checkAccess(views: readonly (readonly [view: string, title: string])[]): Promise<void>
  /** Fails unless views show a hostile text, and nothing but text of it. */
  checkHostileText(views: readonly string[]): Promise<void>
}

/** Declares the hooks of a suite in a browser. Without a browser its tests are skipped. */
export function consoleSuite(
  workers?: Parameters<typeof startConsoleApp>[0],
  { isAdmin = false }: { isAdmin?: boolean } = {},
): ConsoleSuite {
  // A tab that stays open: further tabs of its browser are signed in by it.
  let keeper: Watched
  let opened: { close(): Promise<unknown> }[] = []
  const suite = {} as ConsoleSuite
  const at = (view: string) => `/p/${suite.app.projectId}/${view}`
  const heading = (page: Page, name: string) => page.getByRole('heading', { level: 1, name }).waitFor()
  const open: ConsoleSuite['open'] = async (view, { width = 1280, colorScheme = 'light' } = {}) => {
    const { page: first, problems } = keeper
    problems.length = 0
    const page = await first.context().newPage()
    opened.push(page)
    await page.setViewportSize({ width, height: 800 })
    await page.emulateMedia({ colorScheme })
    await page.goto(`${suite.app.base}/app${at(view)}`)
    return { page, problems }
  }
  Object.assign(suite, {
    at,
    heading,
    open,
    closeLater: what => void opened.push(what),
    async checkAccess(views) {
      const { page, problems } = await open('start')
      for (const [view, title] of views) {
        await go(page, at(view))
        await heading(page, title)
        await page.waitForLoadState('networkidle')
        await checkShown(page, view)
      }
      assert.deepEqual(problems, [])
    },
    async checkHostileText(views) {
      const { page, problems } = await open('start')
      for (const view of views) {
        await go(page, at(view))
        await page.getByText('<img src=x onerror=alert(1)>').first().waitFor()
        assert.equal(await page.locator('main img, main script, main a[href^="javascript"]').count(), 0, view)
        assert.ok(!(await page.locator('main').innerText()).includes('\u202e'), view)
      }
      assert.deepEqual(problems, [])
    },
  } satisfies Partial<ConsoleSuite>)
  before(async function () {
    const started = await startChromium()
    if (!started) return this.skip()
    suite.chromium = started
    suite.app = await startConsoleApp(workers)
    const { id } = await suite.app.user('ada', [allowing(suite.app.projectId)])
    if (isAdmin) await suite.app.admin.patch(`/users/${id}`, { role: 'admin' })
    keeper = await openConsole(started, suite.app, at('start'), 'ada')
  })
  after(async () => {
    await suite.chromium?.close()
    await suite.app?.close()
  })
  afterEach(async () => {
    await Promise.all(opened.map(each => each.close()))
    opened = []
  })
  return suite
}
