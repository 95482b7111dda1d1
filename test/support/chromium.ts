import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { promisify } from 'node:util'
import { type BrowserContextOptions, type Browser as Chromium, chromium, type Page } from 'playwright-core'

const INSTALLED = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']

/**
 * The program of the browser: CHROMIUM_PATH, an installed one with TEST_INSTALLED_BROWSER (`npm test -- --installed-browser`),
 * else the packed one, so that results do not depend on the machine. Null without one.
 */
async function findProgram(): Promise<string | null> {
  const { CHROMIUM_PATH, TEST_INSTALLED_BROWSER } = process.env
  if (CHROMIUM_PATH) return CHROMIUM_PATH
  if (TEST_INSTALLED_BROWSER) {
    const installed = INSTALLED.find(path => existsSync(path))
    assert.ok(installed, `none of ${INSTALLED.join(', ')} is installed (set CHROMIUM_PATH)`)
    return installed
  }
  if (process.platform !== 'linux' || process.arch !== 'x64') return null
  return unpack()
}

/**
 * Unpacks the packed browser once for all processes and runs: into a directory of this process, which a rename publishes. Of
 * concurrent processes the first one to finish wins. Null without the package.
 */
async function unpack(): Promise<string | null> {
  const root = path.resolve(import.meta.dirname, '../..')
  const manifest = path.join(root, 'node_modules/@sparticuz/chromium/package.json')
  // Optional packages may be left out.
  if (!existsSync(manifest)) return null
  const { version } = JSON.parse(readFileSync(manifest, 'utf8'))
  const cache = path.join(root, 'node_modules/.cache')
  const directory = path.join(cache, `chromium-${version}`)
  const program = path.join(directory, 'chromium')
  if (existsSync(program)) return program
  mkdirSync(cache, { recursive: true })
  const own = mkdtempSync(path.join(cache, 'chromium-'))
  // The package unpacks into the temporary directory, in which it also takes a program that another checkout unpacked.
  const source = `import packed from '@sparticuz/chromium'; await packed.executablePath()`
  const options = { cwd: root, env: { ...process.env, TMPDIR: own, NODE_OPTIONS: '' } }
  await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', source], options)
  await rename(own, directory).catch(() => rm(own, { recursive: true }))
  return program
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

/** A page of a separate browser, and its problems: errors, refusals of a policy, requests to other origins. */
export type Watched = { page: Page; problems: string[]; close(): Promise<void> }

/**
 * Opens a page.
 * @param origins origins that it may request
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
