import assert from 'node:assert/strict'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Muster } from '@muster/client'
import type { Browser, Page } from 'playwright-core'
import { stopEmbedded } from '#local/postgres.ts'
import { openPage, startChromium } from '../test/support/chromium.ts'
import { launch } from '../test/support/commands.ts'
import { createSampleProject, type SampleProject } from './sample-project.ts'

/**
 * `npm run screenshots`: runs a deployment with an embedded database and the test model, fills it with a sample project,
 * and writes pictures of the console into docs/images. Arguments are the names of pictures; without, it takes all.
 */

type Picture = {
  /** Name of the file: docs/images/console-NAME.png. */
  name: string
  /** Address in the project. */
  view: (sample: SampleProject) => string
  /** Waits until the view is complete, or does what the picture shows. */
  ready: (page: Page) => Promise<unknown>
  isDark?: boolean
  /** Pixels of the view above the picture. */
  above?: number
}

const text = (shown: string) => (page: Page) => page.getByRole('main').getByText(shown).first().waitFor()

const PICTURES: Picture[] = [
  { name: 'overview', view: () => 'overview', ready: text('AI_PROVIDER_ERROR') },
  { name: 'agents', view: () => 'agents', ready: text('Refund desk') },
  {
    name: 'playground',
    view: ({ agentId }) => `playground?q=${agentId}`,
    ready: async page => {
      await page.getByLabel('Message').fill('Where is my order L-20377?')
      await page.keyboard.press('Enter')
      await page.getByRole('article').getByText('Total').waitFor()
    },
  },
  {
    name: 'session',
    view: ({ sessionId }) => `sessions/${sessionId}`,
    ready: text('Dust the shade'),
    isDark: true,
  },
  { name: 'inbox', view: () => 'inbox', ready: text('Complaint about a delivery') },
  {
    name: 'run',
    view: ({ runId }) => `runs/${runId}`,
    ready: page => page.locator('.graph-node[data-status="requires_action"]').first().waitFor(),
  },
  {
    name: 'trace',
    view: ({ traceId }) => `traces/${traceId}`,
    ready: page => page.getByRole('treeitem').nth(2).waitFor(),
  },
  { name: 'board', view: ({ workflowId }) => `workflows/${workflowId}`, ready: text('Work failed') },
  {
    name: 'case',
    view: ({ caseId, executionId }) => `cases/${caseId}/executions/${executionId}`,
    ready: text('really paid'),
  },
  {
    name: 'evaluation',
    view: ({ evalId }) => `evals/${evalId}?tab=compare`,
    ready: text('1 regressed'),
    isDark: true,
    above: 430,
  },
]

const MAX_BYTES = 150 * 1024
const SIZE = { width: 1280, height: 800 }
const IMAGES = path.resolve(import.meta.dirname, '../docs/images')

type Deployment = { url: string; model: { url: string }; admin: { username: string; password: string } }

/** Waits until `muster up` prints its report. */
async function reportOf({ child, output }: ReturnType<typeof launch>): Promise<Deployment> {
  while (!output.stdout.endsWith('}\n')) {
    assert.equal(child.exitCode, null, output.stderr)
    await new Promise(resolve => setTimeout(resolve, 200))
  }
  return JSON.parse(output.stdout)
}

/** Takes pictures in one color scheme. */
async function take(
  chromium: Browser,
  { url, admin }: Deployment,
  sample: SampleProject,
  pictures: readonly Picture[],
  colorScheme: 'light' | 'dark',
): Promise<void> {
  const { page, problems, close } = await openPage(chromium, [url], { viewport: SIZE, colorScheme })
  const addressOf = (view: string) => `/app/p/${sample.projectId}/${view}`
  await page.goto(url + addressOf('start'))
  await page.getByLabel('Username').fill(admin.username)
  await page.locator('input[name=password]').fill(admin.password)
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  await page.waitForURL(`**${addressOf('start')}`)
  await page.getByRole('heading', { level: 1, name: 'Getting started' }).waitFor()
  for (const { name, view, ready, above = 0 } of pictures) {
    const address = JSON.stringify(addressOf(view(sample)))
    await page.evaluate(`history.pushState({}, '', ${address}); dispatchEvent(new PopStateEvent('popstate'))`)
    await ready(page)
    // Other parts of the view, and movements.
    await page.waitForTimeout(1500)
    await page.evaluate(`scrollTo(0, ${above})`)
    const picture = await page.screenshot()
    assert.ok(picture.length < MAX_BYTES, `${name} has ${picture.length} bytes`)
    fs.writeFileSync(path.join(IMAGES, `console-${name}.png`), picture)
    console.log(`console-${name}.png: ${(picture.length / 1024).toFixed(0)} KB`)
  }
  assert.deepEqual(problems, [])
  await close()
}

const names = process.argv.slice(2)
const wanted = PICTURES.filter(({ name }) => names.length === 0 || names.includes(name))
const base = fs.mkdtempSync(path.join(tmpdir(), 'muster-screenshots-'))
fs.chmodSync(base, 0o755)
fs.mkdirSync(IMAGES, { recursive: true })
const data = path.join(base, 'data')
const running = launch('bin/muster.ts', ['up', '--data', data, '--port', '0', '--json'])
const chromium = await startChromium()
try {
  assert.ok(chromium, 'no Chromium')
  const deployment = await reportOf(running)
  const { token } = await new Muster({ baseUrl: deployment.url }).users.login(deployment.admin)
  const muster = new Muster({ baseUrl: deployment.url, token })
  const sample = await createSampleProject(muster, new URL(deployment.model.url).origin)
  for (const scheme of ['light', 'dark'] as const)
    await take(
      chromium,
      deployment,
      sample,
      wanted.filter(({ isDark = false }) => isDark === (scheme === 'dark')),
      scheme,
    )
} finally {
  await chromium?.close()
  await running.stop('SIGINT')
  await stopEmbedded(path.join(data, 'postgres'))
  fs.rmSync(base, { recursive: true, force: true })
}
