import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { type BrowserContextOptions, type Browser as Chromium, chromium, type Page } from 'playwright-core'

const INSTALLED = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']

/** The program of the browser of this machine; null where there is none. */
async function findProgram(): Promise<string | null> {
  const named = process.env.CHROMIUM_PATH ?? INSTALLED.find(path => existsSync(path))
  if (named) return named
  if (process.platform !== 'linux' || process.arch !== 'x64') return null
  // Optional packages may be left out.
  return import('@sparticuz/chromium').then(
    ({ default: packed }) => packed.executablePath(),
    () => null,
  )
}

/**
 * Starts the browser. Null without one, which the caller counts as skipped; an error instead where CI_REQUIRE_CHROMIUM is 1.
 */
export async function startChromium(): Promise<Chromium | null> {
  const executablePath = await findProgram()
  // Whatever weakens the rules of the web (other packages' own arguments do) would prove nothing.
  if (executablePath) return chromium.launch({ executablePath, args: ['--no-sandbox'] })
  const reason = 'skipped, no Chromium (set CHROMIUM_PATH)'
  assert.notEqual(process.env.CI_REQUIRE_CHROMIUM, '1', reason)
  console.log(`browser: ${reason}`)
  return null
}

/** A page of a browser of its own, and what went wrong in it: errors, refusals of a policy, requests to other origins. */
export type Watched = { page: Page; problems: string[]; close(): Promise<void> }

/**
 * Opens a page.
 * @param origins what it may request
 */
export async function openPage(
  browser: Chromium,
  origins: readonly string[],
  options: BrowserContextOptions = {},
): Promise<Watched> {
  const context = await browser.newContext({ locale: 'en-US', timezoneId: 'UTC', ...options })
  const problems: string[] = []
  context.on('request', request => {
    const { origin } = new URL(request.url())
    if (!origins.includes(origin)) problems.push(`request to ${origin}`)
  })
  context.on('console', message => {
    if (message.type() === 'error') problems.push(message.text())
  })
  context.on('weberror', error => void problems.push(String(error.error())))
  context.on('dialog', dialog => {
    problems.push(`dialog ${dialog.message()}`)
    dialog.dismiss().catch(() => {})
  })
  return { page: await context.newPage(), problems, close: () => context.close() }
}
