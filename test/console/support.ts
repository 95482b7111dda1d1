import fs from 'node:fs'
import path from 'node:path'
import type { Browser, BrowserContextOptions, Page } from 'playwright-core'
import { type Double, startDouble } from '../../src/local/double/server.ts'
import { openPage, type Watched } from '../support/chromium.ts'
import { type OauthApp, startOauthApp } from '../support/oauth.ts'

export const PASSWORD = 'a fine password'
const axe = fs.readFileSync(path.resolve(import.meta.dirname, '../../node_modules/axe-core/axe.min.js'), 'utf8')

export type ConsoleApp = OauthApp & { double: Double; projectId: string; providerId: string; agentId: string }

/** A deployment whose address serves the console, with a project, a provider on the model double, and an agent. */
export async function startConsoleApp(): Promise<ConsoleApp> {
  const double = await startDouble({})
  const app = await startOauthApp({ workers: ['generation'] })
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
  app: ConsoleApp,
  at: string,
  username: string,
  options: BrowserContextOptions = {},
): Promise<Watched> {
  const watched = await openPage(chromium, [app.base], options)
  await watched.page.goto(`${app.base}/app${at}`)
  await signIn(watched.page, username)
  await watched.page.waitForURL(`**/app${at || '/p/**'}`)
  return watched
}

/** Goes to another address as a link of the console does, without a reload. */
export const go = (page: Page, at: string): Promise<void> =>
  page.evaluate(
    `history.pushState({}, '', ${JSON.stringify(`/app${at}`)}); dispatchEvent(new PopStateEvent('popstate'))`,
  )

/** Violations of WCAG 2.2, level A or AA, on the current page. */
export async function violations(page: Page): Promise<string[]> {
  await page.evaluate(axe)
  return page.evaluate(`axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }).then(
    ({ violations }) => violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => id + ': ' + html.slice(0, 200))))`)
}
