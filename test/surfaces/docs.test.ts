import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import axe from 'axe-core'
import MiniSearch from 'minisearch'
import type { BrowserContextOptions, Browser as Program } from 'playwright-core'
import { actionCatalogue } from '#core/api/catalogue.ts'
import { operations } from '#core/api/operation.ts'
import { listExtensionPoints } from '#core/base/declarations.ts'
import { settingRows } from '#core/base/declared-settings.ts'
import { errorCodes } from '#core/base/errors.ts'
import { guides } from '#core/docs/guides.ts'
import { referenceLayout } from '#core/docs/layout.ts'
import { isReferenceBuilt } from '#core/docs/scalar.ts'
import { eventTypes } from '#core/writes/events.ts'
import { program } from '#operator/program.ts'
import { OWN_COMMANDS } from '../../cli/src/own-commands.ts'
import { Muster } from '../../client/dist/index.js'
import { refusal, startScripted } from '../client/support.ts'
import { startApp } from '../support/app.ts'
import { openPage, startChromium, type Watched } from '../support/chromium.ts'
import { populate } from '../support/populate.ts'
import { findPython, runPython } from '../support/python.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>
type Sample = { lang: string; label: string; source: string }
type Documented = { operation: Json; method: string; path: string; samples: Sample[] }
type File = { status: number; type: string; policy: string; text: string }

const MOST_BYTES_GZIP = 60 * 1024
const MOST_BYTES_OF_INDEX_GZIP = 300 * 1024

/** Splits a command of a shell into its words. */
function wordsOf(command: string): string[] {
  const text = command.replaceAll('\\\n', ' ')
  const words = [...text.matchAll(/(?:'(?:[^']*)'|"[^"]*"|\\.|[^\s'"\\])+/g)].map(([word]) => word)
  return words.map(word =>
    word.replace(/'([^']*)'|"([^"]*)"|\\(.)/g, (_, single, double, escaped) => single ?? double ?? escaped),
  )
}

/** Warnings, entries of the audit log, and variables of other programs. */
const NAMES_OF_OTHERS = [
  'ANTHROPIC_API_KEY',
  'ARGUMENT_NOT_REQUIRED',
  'AWS_REGION',
  'CELL_URL',
  'GEMINI_API_KEY',
  'HTTPS_PROXY',
  'MUSTER_CONFIG_DIR',
  'MUSTER_OUTPUT',
  'MUSTER_PROFILE',
  'MUSTER_PROJECT',
  'MUSTER_TOKEN',
  'MUSTER_URL',
  'NODE_COMPILE_CACHE',
  'NO_PROXY',
  'OPENAI_API_KEY',
  'POSTGRES_PASSWORD',
  'env:NAME',
  'guardrails:Evaluate',
  'users:Login',
]
/** Guides with names and routes of other protocols. */
const PROTOCOL_GUIDES = ['/docs/guides/a2a', '/docs/guides/ag-ui', '/docs/guides/ai-sdk', '/docs/guides/openai']

/** Routes that are no operations. */
const MOUNTS = /^\/(docs|mcp|oauth)(\/|$)/

/**
 * Operations whose example is refused for the state of the project, in which no turn was completed and each kind has
 * one row.
 */
const NEEDS_ANOTHER_STATE = [
  'acceptShare',
  'callTool',
  'createDatasetItemsFromSession',
  'createShare',
  'importFormationResource',
  'linkCase',
  'listShareReferences',
  'loginUser',
  'mergeActor',
  'mergeCase',
  'mergeDocumentTags',
  'putProjectPrices',
  'reingestDocument',
  'replaceDocumentTags',
  'replaceMemory',
  'retryRun',
  'setAgentRelease',
  'takeOverSession',
  'testMemoryRule',
  'updateDocument',
  'updateMemory',
]

const FLAGS_WITHOUT_FIELD = ['--file', '--output', '--clear', '--body']

describe('the documentation', function () {
  this.timeout(120_000)
  const app = forSuite(() => startApp({ env: { BASE_URL: 'https://muster.example', SYNC_WAIT_SECONDS: '1' } }))
  let document: Json
  const files = new Map<string, File>()

  const get = async (path: string): Promise<File> => {
    const known = files.get(path)
    if (known) return known
    // Compressing every page would take most of the time.
    const response = await fetch(app.url + path, { headers: { 'accept-encoding': 'identity' } })
    const file = {
      status: response.status,
      type: response.headers.get('content-type') ?? '',
      policy: response.headers.get('content-security-policy') ?? '',
      text: await response.text(),
    }
    files.set(path, file)
    return file
  }
  const idsOf = (html: string) => [...html.matchAll(/\bid="([^"]+)"/g)].map(match => match[1])
  const linksOf = (html: string) => [...html.matchAll(/<a [^>]*?href="([^"]*)"/g)].map(match => match[1])

  /** Addresses of all pages, as the start page leads to them. */
  let pages: string[]

  before(async () => {
    document = JSON.parse((await get('/docs/openapi.json')).text)
    const start = await get('/docs')
    pages = ['/docs', ...new Set(linksOf(start.text).filter(link => /^\/docs\/(?!.*\.md$)/.test(link)))].filter(
      path => path !== '/docs/reference',
    )
  })

  const samplesOf = (): Documented[] =>
    Object.entries(document.paths as Record<string, Record<string, Json>>).flatMap(([path, methods]) =>
      Object.entries(methods)
        .filter(([, operation]) => operation['x-command'] && !operation['x-alias-of'])
        .map(([method, operation]) => ({ operation, method, path, samples: operation['x-codeSamples'] ?? [] })),
    )

  it('has a page for each guide, module and catalogue', async () => {
    const catalogues = ['errors', 'permissions', 'events', 'settings', 'cli', 'client', 'extension-points', 'changes']
    for (const path of [...catalogues, 'guides/operations']) assert.ok(pages.includes(`/docs/${path}`), path)
    for (const { name } of document.tags)
      assert.ok(pages.includes(`/docs/reference/${name.toLowerCase().replaceAll(' ', '-')}`), name)
    const grouped = guides().filter(({ path }) => path !== '')
    assert.deepEqual(
      grouped.filter(({ group }) => group === undefined).map(({ path }) => path),
      [],
      'each guide has a group',
    )
    for (const { path } of grouped) assert.ok(pages.includes(`/docs/${path}`), path)
    for (const path of [
      '/docs/nothing',
      '/docs/guides/../../package.json',
      '/docs/assets/site.ts',
      '/docs/guides/x.md',
    ])
      assert.equal((await get(path)).status, 404, path)
    assert.equal((await get('/docs/')).text, (await get('/docs')).text)
  })

  it('loads nothing from elsewhere, reads without its script, and is small', async () => {
    for (const path of pages) {
      const { status, type, policy, text } = await get(path)
      assert.deepEqual([path, status, type], [path, 200, 'text/html; charset=utf-8'])
      assert.match(policy, /^default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; /)
      assert.match(policy, /require-trusted-types-for 'script'/)
      const loaded = [...text.matchAll(/<(?:script|link|img|iframe)[^>]* (?:src|href)="([^"]*)"/g)].map(
        ([, url]) => url,
      )
      const icon = loaded.find(url => url.startsWith('data:image/svg+xml;'))
      const images = loaded.filter(url => url.startsWith('images/'))
      for (const url of images) assert.equal((await get(`/docs/guides/${url}`)).type, 'image/png', url)
      assert.deepEqual(
        loaded.filter(url => !images.includes(url)),
        [icon, '/docs/assets/docs.css', '/docs/assets/docs.js'],
      )
      assert.doesNotMatch(text, /<script(?![^>]* src=)|<style| style="| on\w+="/)
      assert.ok(text.includes('<main id="page.content"><h1>'), path)
      assert.ok(gzipSync(text).length < MOST_BYTES_GZIP, path)
    }
  })

  it('has no dead link and no anchor twice', async () => {
    const anchors = new Map<string, Set<string>>()
    for (const path of pages) {
      const ids = idsOf((await get(path)).text)
      anchors.set(path, new Set(ids))
      assert.equal(anchors.get(path)?.size, ids.length, path)
    }
    const dead: string[] = []
    for (const path of pages)
      for (const link of new Set(linksOf((await get(path)).text))) {
        const { pathname, hash, origin } = new URL(link, `https://muster.example${path}`)
        if (origin !== 'https://muster.example') continue
        const known = anchors.get(pathname)
        const isThere = known
          ? !hash || known.has(decodeURIComponent(hash.slice(1)))
          : (await get(pathname)).status === 200
        if (!isThere) dead.push(`${path}: ${link}`)
      }
    assert.deepEqual(dead, [])
  })

  it('has every page as Markdown with the same headings, and an index of them', async () => {
    const decode = (text: string) =>
      text
        .replace(/<[^>]+>/g, '')
        .replace(/&(amp|lt|gt|quot);/g, (_, name) => ({ amp: '&', lt: '<', gt: '>', quot: '"' })[name as 'lt'])
    const index = await get('/docs/llms.txt')
    for (const path of pages) {
      const markdown = path === '/docs' ? '/docs/index.md' : `${path}.md`
      assert.ok(index.text.includes(`](${markdown})`), markdown)
      const { status, type, text } = await get(markdown)
      assert.deepEqual([status, type], [200, 'text/markdown; charset=utf-8'], markdown)
      const prose = text.replace(/^```.*?^```$/gms, '')
      const written = [...prose.matchAll(/^#{1,6} (.*)$/gm)].map(([, each]) =>
        each.replace(/`|\[([^\]]*)\]\([^)]*\)|\\/g, '$1'),
      )
      const shown = [...(await get(path)).text.matchAll(/<h[1-6][^>]*>(.*?)<\/h[1-6]>/g)].map(([, each]) =>
        decode(each),
      )
      assert.deepEqual(written, shown, path)
      for (const [, link] of prose.matchAll(/\]\((\/docs[^)#]*)/g)) assert.equal((await get(link)).status, 200, link)
    }
  })

  it('has an anchor for each error code, action, event and setting', async () => {
    const missing = async (path: string, names: readonly string[]) => {
      const ids = new Set(idsOf((await get(path)).text))
      return names.filter(name => !ids.has(name))
    }
    assert.deepEqual(await missing('/docs/errors', errorCodes()), [])
    assert.deepEqual(
      await missing(
        '/docs/events',
        eventTypes.all().map(({ name }) => name),
      ),
      [],
    )
    assert.deepEqual(
      await missing(
        '/docs/settings',
        settingRows().map(({ name }) => name),
      ),
      [],
    )
    const actions = operations.all().flatMap(({ action }) => action ?? [])
    assert.deepEqual(await missing('/docs/permissions', actions), [])
  })

  it('lists the extension points with their contributors', async () => {
    const { text } = await get('/docs/extension-points')
    for (const { name, folder, contributors } of listExtensionPoints())
      for (const each of [
        `<td>${name}</td>`,
        `<code>${folder}</code>`,
        ...contributors.map(by => `<code>${by}</code>`),
      ])
        assert.ok(text.includes(each), `${name}: ${each}`)
  })

  it('names only codes, settings, actions, operations and commands that exist', async () => {
    const actions = actionCatalogue(operations.all()).flatMap(each => each.actions.map(({ action }) => action))
    const known = new Set([...errorCodes(), ...settingRows().map(({ name }) => name), ...actions, ...NAMES_OF_OTHERS])
    const table = JSON.parse(readFileSync('client/commands.json', 'utf8')) as { commands: { words: string[] }[] }
    const programs = new Set([
      'help',
      ...program().commands.map(each => each.name()),
      ...Object.keys(OWN_COMMANDS).map(name => name.split(' ')[0]),
      ...table.commands.map(({ words }) => words[0]),
    ])
    const pattern = (route: string) => route.replace(/\{\w+\}/g, '{}')
    const routes = new Set(operations.all().map(({ method, path }) => `${method.toUpperCase()} ${pattern(path)}`))
    const unknown: string[] = []
    for (const path of pages.filter(each => each.startsWith('/docs/guides/'))) {
      const prose = (await get(`${path}.md`)).text.replace(/^```.*?^```$/gms, '')
      for (const [, name] of prose.matchAll(/`([^`\n]+)`/g)) {
        const [, command] = /^(?:npx )?muster ([a-z-]+)/.exec(name) ?? []
        const isForeign = PROTOCOL_GUIDES.includes(path)
        const isCode = /^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$/.test(name) && !isForeign
        const isAction = /^[a-z]+(-[a-z]+)*:[A-Z]\w+$/.test(name)
        const [, method, route] = /^(GET|POST|PUT|PATCH|DELETE) (?:\/api\/v1)?(\/[\w{}/-]+)$/.exec(name) ?? []
        const isRoute =
          isForeign ||
          !route ||
          (!name.includes('/api/v1') && MOUNTS.test(route)) ||
          routes.has(`${method} ${pattern(route)}`)
        if (((isCode || isAction) && !known.has(name)) || (command && !programs.has(command)) || !isRoute)
          unknown.push(`${path}: ${name}`)
      }
    }
    assert.deepEqual(unknown, [])
  })

  it('is where the errors of the API lead to', async () => {
    const { body } = await app.anonymous.get('/agents')
    assert.equal(body.error.docs_url, 'https://muster.example/docs/errors#UNAUTHORIZED')
  })

  it('describes each operation, with its fields, and each field of each record', async () => {
    const html = (await Promise.all(pages.filter(path => path.startsWith('/docs/reference/')).map(get))).map(
      ({ text }) => text,
    )
    const entries = new Map(
      html.flatMap(text =>
        text.split(/(?=<h2 id=")/).map(part => [/^<h2 id="([^"]+)"/.exec(part)?.[1], part] as const),
      ),
    )
    for (const { operation, method, path } of samplesOf()) {
      const entry = entries.get(operation.operationId) ?? ''
      assert.ok(entry.includes(`<strong>${method.toUpperCase()}</strong> <code>${path}</code>`), operation.operationId)
      if (operation['x-iam-action']) assert.ok(entry.includes(`<code>${operation['x-iam-action']}</code>`))
      for (const { label } of operation['x-codeSamples'])
        assert.ok(entry.includes(`<p><strong>${label}</strong></p>\n<pre`), label)
    }
    for (const [name, schema] of Object.entries(document.components.schemas as Record<string, Json>))
      for (const field of Object.keys(schema.properties ?? {}))
        assert.ok((entries.get(name) ?? '').includes(`<code>${field}</code>`), `${name}.${field}`)
  })

  it('has an example of each operation for each client, which makes one request', async () => {
    const methods = new Map<string, string>()
    const AsyncFunction = (async () => {}).constructor as new (
      ...args: string[]
    ) => (...args: unknown[]) => Promise<unknown>
    for (const { operation, samples, method, path } of samplesOf()) {
      const name = operation.operationId as string
      const isForm = operation.requestBody?.content['multipart/form-data'] !== undefined
      assert.deepEqual(
        samples.map(each => each.label),
        ['curl', 'TypeScript', 'Python', 'CLI'],
        name,
      )
      const [curl, typescript] = samples.map(each => each.source)
      const { source: cli } = samples.at(-1) as Sample
      for (const { source } of samples) assert.doesNotMatch(source, /\bsk_|undefined|\[object/, name)

      const words = wordsOf(curl)
      const url = new URL(words.find(word => word.startsWith('https://muster.example/')) as string)
      const pattern = new RegExp(`^${path.replace(/\{\w+\}/g, '[^/]+')}$`)
      assert.match(url.pathname, pattern, name)
      assert.equal(words.includes('-X') ? words[words.indexOf('-X') + 1] : 'GET', method.toUpperCase(), name)
      const isPublic = operation.security?.length === 0
      assert.equal(words.includes('Authorization: Bearer $MUSTER_TOKEN'), !isPublic, name)
      const sent = words.includes('-d') ? JSON.parse(words[words.indexOf('-d') + 1]) : undefined

      const requests: { method: string; url: URL; body: unknown; type: string }[] = []
      const muster = new Muster({
        baseUrl: 'https://muster.example',
        token: 'test',
        maxRetries: 0,
        async fetch(input: any, init: any) {
          const { body } = init
          requests.push({
            method: init.method,
            url: new URL(input),
            body: typeof body === 'string' ? JSON.parse(body) : body,
            type: new Headers(init.headers).get('content-type') ?? '',
          })
          return Response.json({ error: { code: 'NOT_FOUND', message: '', hint: '', docs_url: '' } }, { status: 404 })
        },
      })
      const openAsBlob = async () => new Blob(['text'])
      await new AsyncFunction('muster', 'openAsBlob', typescript)(muster, openAsBlob).catch(() => {})
      const request = requests[0]
      assert.ok(request, `${name}: ${typescript}`)
      assert.deepEqual([request.method, request.url.pathname], [method.toUpperCase(), url.pathname], name)
      // The client requests whole pages.
      for (const key of ['limit', 'offset']) request.url.searchParams.delete(key)
      assert.equal(request.url.search, url.search, name)
      if (sent !== undefined) assert.deepEqual(request.body ?? {}, sent, `${name}: ${typescript}`)
      methods.set(name, typescript)

      const [program, ...rest] = wordsOf(cli)
      const command = operation['x-command'] as string[]
      assert.deepEqual([program, ...rest.slice(0, command.length)], ['muster', ...command], name)
      const ids = path.match(/\{\w+\}/g)?.length ?? 0
      const flags = rest.slice(command.length + ids).filter(word => word.startsWith('--'))
      const parameters = (operation.parameters ?? []).map(({ $ref }: Json) => $ref.split('.').slice(1, 2)[0])
      const fields = [...(operation['x-flat'] ?? []).map((each: Json) => each.name), ...parameters]
      const known = new Set(
        fields
          .flatMap((field: string) => [`--${field}`, `--no-${field}`])
          .map((flag: string) => flag.replaceAll('_', '-')),
      )
      if (!isForm)
        for (const flag of flags) assert.ok(known.has(flag) || FLAGS_WITHOUT_FIELD.includes(flag), `${name}: ${flag}`)
    }
    assert.ok(methods.size > 450, String(methods.size))
  })

  it('has examples in Python that send the request of the example with curl', async function () {
    const python = await findPython()
    if (!python) return this.skip()
    const described = samplesOf()
    const sources = described.map(({ samples }) => samples.find(({ label }) => label === 'Python')?.source)
    const server = await startScripted(refusal(404, 'RESOURCE_NOT_FOUND'))
    const directory = mkdtempSync(path.join(tmpdir(), 'muster-python-'))
    try {
      const problems = await runPython(
        python,
        `import json, os, sys
from muster_client import Muster, NotFound
os.chdir(sys.argv[2])
for name in ("returns.csv", "returns.md"):
    with open(name, "w") as file:
        file.write("file")
muster = Muster(sys.argv[1], "test", max_retries=0)
problems = []
for source in json.load(sys.stdin):
    try:
        exec(source, {"muster": muster})
        problems.append(source)
    except NotFound:
        pass
    except Exception as error:
        problems.append([source, repr(error)])
print(json.dumps(problems))`,
        [server.url, directory],
        JSON.stringify(sources),
      )
      assert.deepEqual(problems, [])
      assert.equal(server.requests.length, described.length)
      for (const [index, { operation, method, samples }] of described.entries()) {
        const words = wordsOf(samples[0].source)
        const given = (flag: string) => words.filter((_, at) => words[at - 1] === flag)
        const sent = server.requests[index]
        const url = new URL(sent.url, 'https://muster.example')
        // The client requests whole pages.
        if (operation['x-paged']) url.searchParams.delete('limit')
        const name = operation.operationId as string
        assert.deepEqual(
          [sent.method, url.href],
          [method.toUpperCase(), words.find(word => word.startsWith('https://'))],
          name,
        )
        const type = sent.headers['content-type']
        if (words.includes('-F')) {
          const parts = [...(await new Response(sent.body, { headers: { 'content-type': type as string } }).formData())]
          const texts = parts.map(([part, value]) => `${part}=${typeof value === 'string' ? value : `@${value.name}`}`)
          assert.deepEqual(texts.sort(), given('-F').sort(), name)
        } else if (words.includes('-d')) {
          // The method that streams is another one.
          const { [operation['x-stream']?.selected_by?.name]: _, ...body } = JSON.parse(given('-d')[0])
          assert.deepEqual(JSON.parse(sent.body || '{}'), body, name)
        } else assert.equal(sent.body, words.includes('--data-binary') ? 'file' : '', name)
        if (words.includes('--data-binary')) assert.ok(words.includes(`Content-Type: ${type}`), name)
      }
    } finally {
      await server.close()
      rmSync(directory, { recursive: true, force: true })
    }
    assert.ok(described.length > 450, String(described.length))
  })

  it('has examples that the service accepts, sent with the ids of a project that has one of everything', async () => {
    const ids = await populate(app)
    const own = new Map(
      Object.values(ids)
        .reverse()
        .map(id => [id.slice(0, -27), id]),
    )
    const { project_id } = ids
    const statement = [{ effect: 'Allow', action: ['*'], resource: ['srn:*:*:*'] }]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const bound = (await app.admin.post('/project-keys', { project_id, policy_ids: [policy.body.id] })).body.secret
    const withOwnIds = (text: string) =>
      text.replace(/\b([a-z_]+)_[0-9a-hjkmnp-tv-z]{26}\b/g, (id, prefix) => own.get(prefix) ?? id)

    const send = async ({ operation, method, samples }: Documented, token: string | null) => {
      const words = wordsOf(withOwnIds(samples[0].source))
      const given = (flag: string) => words.filter((_, index) => words[index - 1] === flag)
      const url = new URL(words.find(word => word.startsWith('https://')) as string)
      if (operation['x-wait'] && method !== 'get') url.searchParams.set(operation['x-wait'].parameter, 'false')
      const headers = new Headers(given('-H').map(each => each.split(': ') as [string, string]))
      if (headers.has('authorization')) headers.set('authorization', `Bearer ${token}`)
      const form = new FormData()
      for (const field of given('-F')) {
        const [, name, value] = /^(\w+)=(.*)$/s.exec(field) as RegExpExecArray
        form.set(name, value.startsWith('@') ? new File(['input\nhello\n'], value.slice(1)) : value)
      }
      const [text] = [...given('-d'), ...given('--data-binary').map(() => 'input\nhello\n')]
      const body = given('-F').length > 0 ? form : text
      const response = await fetch(app.url + url.pathname + url.search, { method: method.toUpperCase(), headers, body })
      // The streams of work have no end here, where nothing works.
      const isStream = response.headers.get('content-type')?.startsWith('text/event-stream')
      const answer = isStream ? '' : await response.text()
      await response.body?.cancel().catch(() => {})
      const error = response.status < 300 ? null : JSON.parse(answer).error
      return { id: operation.operationId as string, declared: operation['x-error-codes'] as string[], error }
    }

    // Deletes from the last module on, because later ones refer to earlier ones; what ends the sign-in at the end.
    const [changes, deletes] = [samplesOf(), samplesOf().reverse()].map((all, index) =>
      all.filter(({ method, path }) => (method === 'delete') === (index === 1) && !path.includes('/users/me/')),
    )
    const order = ['get', 'post', 'put', 'patch']
    changes.sort((a, b) => order.indexOf(a.method) - order.indexOf(b.method))
    const answers: Awaited<ReturnType<typeof send>>[] = []
    for (const each of [...changes, ...deletes]) {
      const answer = await send(each, app.admin.token)
      // A key of a project need not name it; the examples do not.
      const isUnbound = answer.error?.meta?.problems?.[0].path === 'project_id'
      answers.push(isUnbound ? await send(each, bound) : answer)
    }
    const refused = answers.filter(({ error }) => error)
    const isByState = ({ id, declared = [], error: { code, message } }: (typeof answers)[number]) =>
      NEEDS_ANOTHER_STATE.includes(id) ||
      (code !== 'VALIDATION_FAILED' && declared.includes(code)) ||
      (code === 'RESOURCE_NOT_FOUND' && !message.startsWith('No route'))
    assert.deepEqual(
      refused.filter(each => !isByState(each)).map(({ id, error }) => `${id}: ${error.code} ${error.message}`),
      [],
    )
    const accepted = answers.length - refused.length
    assert.ok(accepted > answers.length * 0.8, `${accepted} of ${answers.length}`)
  }).timeout(300_000)

  it('finds each error code, operation, command, event and setting first', async () => {
    const { text } = await get('/docs/search.json')
    assert.ok(gzipSync(text).length < MOST_BYTES_OF_INDEX_GZIP)
    const { options, index, synonyms, targets } = JSON.parse(text)
    const search = MiniSearch.loadJS(index, options)
    const source = (await get('/docs/assets/query.js')).text
    const { find } = await import(`data:text/javascript,${encodeURIComponent(source)}`)
    const first = (query: string): string | undefined => targets[find(search, synonyms, query)[0]?.id]
    const wrong: string[] = []
    const expect = (query: string, target: string) => {
      const found = first(query)
      if (!found?.endsWith(target)) wrong.push(`${query}: ${found}`)
    }
    // A code and a setting may have one name.
    for (const code of errorCodes()) expect(code, `#${code}`)
    for (const { name } of settingRows()) expect(name, `#${name}`)
    for (const { name } of eventTypes.all()) expect(name, `/docs/events#${name}`)
    for (const { operation } of samplesOf()) {
      expect(operation.operationId, `#${operation.operationId}`)
      expect(operation['x-command'].join(' '), `#${operation.operationId}`)
    }
    assert.deepEqual(wrong, [])
    assert.match(first('backups') ?? '', /^\/docs\/guides\//)
    for (const target of targets) assert.ok(pages.includes(target.split('#')[0]), target)
  })

  it('draws each state diagram, with its transitions as text', async () => {
    const concepts = pages.filter(each => each.includes('/concepts-'))
    assert.equal(concepts.length, 5)
    let pictures = 0
    for (const page of [...concepts, '/docs/guides/flows']) {
      const { text } = await get(page)
      const drawn = [...text.matchAll(/<svg class="states" role="img" aria-label="[^"]+"/g)].length
      assert.ok(drawn > 0, page)
      assert.equal([...text.matchAll(/<details class="transitions">/g)].length, drawn, page)
      assert.doesNotMatch(text, /stateDiagram/)
      if (page !== '/docs/guides/flows') pictures += drawn
      assert.match((await get(`${page}.md`)).text, /^```mermaid\nstateDiagram-v2$/m)
    }
    assert.equal(pictures, [...(await get('/docs/guides/flows.md')).text.matchAll(/^stateDiagram-v2$/gm)].length)
    const { text } = await get('/docs/guides/concepts-deliveries')
    assert.ok(text.includes('<li>queued → completed: 2xx</li>'))
  })

  it('is exported as files that are equal but for their links', async () => {
    const directory = mkdtempSync(path.join(tmpdir(), 'muster-docs-'))
    try {
      const env = { ...process.env, BASE_URL: 'https://muster.example' }
      await promisify(execFile)(process.execPath, ['bin/muster.ts', 'docs', 'export', directory], { env })
      const read = (name: string) => readFileSync(path.join(directory, name), 'utf8')
      const withoutAddresses = (html: string) =>
        html.replace(/(href|src|data-index|data-document)="(?!https?:|#)[^"#]*/g, '$1="')
      for (const each of [...pages, '/docs/reference']) {
        const file = each === '/docs' ? 'index.html' : `${each.slice('/docs/'.length)}.html`
        const html = read(file)
        assert.equal(withoutAddresses(html), withoutAddresses((await get(each)).text), file)
        for (const [, link] of html.matchAll(/(?:href|src|data-index)="(?!https?:|data:|#)([^"#]+)/g))
          assert.ok(existsSync(path.join(directory, path.dirname(file), link)), `${file}: ${link}`)
      }
      for (const target of JSON.parse(read('search.json')).targets)
        assert.ok(existsSync(path.join(directory, target.split('#')[0])), target)
    } finally {
      rmSync(directory, { recursive: true, force: true })
    }
  })

  it('describes how to build the interactive reference where it is not built', () => {
    const html = referenceLayout(false, [], path => `/docs/${path}`)
    assert.match(html, /<code>npm run build<\/code>/)
    assert.doesNotMatch(html, /<script/)
  })

  it('has errors and permissions alone when it is turned off', async () => {
    const other = await startApp({ env: { DOCS_ENABLED: 'false', BASE_URL: 'https://muster.example/ai' } })
    try {
      const statusOf = async (path: string) => (await other.anonymous.get(`/${path}`)).status
      const wanted = ['/docs/errors', '/docs/permissions', '/docs/errors.md', '/docs/assets/docs.css']
      for (const path of wanted) assert.equal(await statusOf(path), 200, path)
      const refused = [
        '/docs',
        '/docs/guides/operations',
        '/docs/reference',
        '/docs/reference/agents',
        '/docs/search.json',
      ]
      for (const path of refused) assert.equal(await statusOf(path), 404, path)
      const { body } = await other.anonymous.get('//docs/errors')
      assert.ok(body.includes('href="/ai/docs/permissions"'), 'a path of the proxy precedes all addresses')
      assert.doesNotMatch(body, /href="\/docs|search\.json|docs\.js/)
    } finally {
      await other.close()
    }
  })

  describe('in a browser', () => {
    let chromium: Program | null = null
    const opened: Watched[] = []

    before(async function () {
      chromium = await startChromium()
      if (!chromium) this.skip()
    })
    afterEach(async () => void (await Promise.all(opened.splice(0).map(each => each.close()))))
    after(() => chromium?.close())

    const open = async (path: string, options?: BrowserContextOptions): Promise<Watched> => {
      const watched = await openPage(chromium as Program, [app.url], options)
      opened.push(watched)
      await watched.page.goto(app.url + path)
      return watched
    }

    it('is searched with the keyboard', async () => {
      const { page, problems } = await open('/docs/guides/agents')
      await page.keyboard.press('/')
      await page.keyboard.type('createAgent')
      await page.locator('.results a').first().waitFor()
      await page.keyboard.press('Enter')
      await page.waitForURL('**/docs/reference/agents#createAgent')
      assert.equal(await page.locator('[id="createAgent"]').innerText(), 'createAgent')
      assert.deepEqual(problems, [])
    })

    it('shows the sentence that was found, and leads to it with the arrow keys', async () => {
      const { page, problems } = await open('/docs')
      await page.keyboard.press('/')
      await page.keyboard.type('localhost tool blocked')
      const first = page.locator('.results a').first()
      await first.getByText('fails with TOOL_EGRESS_BLOCKED').waitFor()
      assert.ok((await first.locator('mark').allInnerTexts()).includes('localhost'))
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('ArrowUp')
      assert.match(String(await page.evaluate('document.activeElement.textContent')), /^An address on localhost/)
      await page.keyboard.press('Enter')
      await page.waitForURL('**/docs/guides/tools#an-address-on-localhost-or-in-a-private-network-is-blocked')
      assert.deepEqual(problems, [])
    })

    it('has the examples as tabs, chooses by keyboard, and remembers the choice on other pages', async () => {
      const { page, problems } = await open('/docs/reference/prices')
      const tabLists = page.getByRole('tablist', { name: 'Client' })
      const shown = async () => new Set(await page.locator('[role=tabpanel]:not([hidden]) code').allInnerTexts())
      const chosen = async () => new Set(await page.locator('[aria-selected=true]').allInnerTexts())
      assert.deepEqual(await tabLists.first().getByRole('tab').allInnerTexts(), ['curl', 'TypeScript', 'Python', 'CLI'])
      assert.deepEqual(await chosen(), new Set(['curl']))
      for (const text of await shown()) assert.match(text, /^curl /)
      await tabLists.first().getByRole('tab', { name: 'curl' }).focus()
      await page.keyboard.press('ArrowLeft')
      assert.deepEqual(await chosen(), new Set(['CLI']))
      for (const text of await shown()) assert.match(text, /^muster /)
      await page.keyboard.press('ArrowLeft')
      assert.equal(await page.evaluate('document.activeElement.textContent'), 'Python')
      await page.goto(`${app.url}/docs/reference/files`)
      assert.deepEqual(await chosen(), new Set(['Python']))
      assert.deepEqual(problems, [])
    })

    it('copies a block of code', async () => {
      const { page, problems } = await open('/docs/guides/quick-start-python', {
        permissions: ['clipboard-read', 'clipboard-write'],
      })
      const button = page.getByRole('button', { name: 'Copy' }).first()
      await button.focus()
      await page.keyboard.press('Enter')
      await page.getByRole('button', { name: 'Copied' }).waitFor()
      const copied = await page.evaluate('navigator.clipboard.readText()')
      assert.match(String(copied), /^export MUSTER_URL=.*\ncd \$\(mktemp -d\)$/s)
      assert.deepEqual(problems, [])
    })

    it('has the sections of a page, and the pages before and after it', async () => {
      const { page, problems } = await open('/docs/guides/concepts-automation')
      const contents = page.getByRole('navigation', { name: 'On this page' })
      await contents.getByRole('link', { name: 'A task' }).click()
      await page.waitForURL('**#a-task')
      const opened = page.getByRole('navigation', { name: 'Pages' }).locator('details[open] summary')
      assert.deepEqual(await opened.allInnerTexts(), ['Automation'])
      await page.getByRole('link', { name: 'Next: Orchestrations' }).click()
      await page.getByRole('link', { name: 'Previous: Concepts: runs, tasks, cases' }).waitFor()
      assert.deepEqual(problems, [])
    })

    it('reads without scripts: the search is hidden, and the reference leads to pages that need none', async () => {
      const { page, problems } = await open('/docs/guides/agents', { javaScriptEnabled: false })
      assert.equal(await page.locator('[role=search]').isVisible(), false)
      await page.getByRole('heading', { name: 'Versions and releases of agents' }).waitFor()
      await page.goto(`${app.url}/docs/reference/prices`)
      for (const text of [/^curl /, /^const answer = await muster/, /^answer = muster/, /^muster /])
        await page.locator('main pre', { hasText: text }).first().waitFor()
      assert.equal(await page.getByRole('tab').count(), 0)
      await page.goto(`${app.url}/docs/reference`)
      await page.getByRole('link', { name: 'Agents', exact: true }).click()
      await page.getByRole('heading', { name: 'createAgent', exact: true }).waitFor()
      assert.deepEqual(problems, [])
    })

    it('is accessible, in both color schemes and on narrow screens', async () => {
      for (const [colorScheme, width] of [
        ['light', 1280],
        ['dark', 360],
      ] as const) {
        const { page, problems } = await open('/docs', { colorScheme, viewport: { width, height: 800 } })
        for (const path of [
          '/docs',
          '/docs/guides/mcp',
          '/docs/guides/concepts-automation',
          '/docs/reference/prices',
          '/docs/events',
        ]) {
          await page.goto(app.url + path)
          await page.evaluate(axe.source)
          const found = await page.evaluate(
            `axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }).then(({ violations }) =>
              violations.map(({ id, nodes }) => [id, nodes[0].html]))`,
          )
          assert.deepEqual(found, [], `${path} ${colorScheme} ${width}`)
          const overflow = await page.evaluate('document.documentElement.scrollWidth > innerWidth')
          assert.equal(overflow, false, `${path} is wider than the screen`)
        }
        assert.deepEqual(problems, [])
      }
    })

    it('has the interactive reference, for the keyboard, which requests its own origin alone and stores nothing', async function () {
      if (!isReferenceBuilt()) this.skip()
      const { page, problems } = await open('/docs/reference#tag/agents/GET/api/v1/agents')
      const sent = page.waitForRequest('**/api/v1/agents*')
      await page.getByRole('button', { name: /Test Request.*get \/api\/v1\/agents\)/ }).press('Enter')
      await page.getByRole('button', { name: /Send get request/ }).press('Enter')
      assert.equal(new URL((await sent).url()).origin, app.url)
      // The answer of a request without a token.
      await page.getByText('UNAUTHORIZED').first().waitFor()
      assert.deepEqual(
        problems.filter(problem => !problem.includes('401')),
        [],
      )
      assert.equal(await page.evaluate('localStorage.length + sessionStorage.length'), 0)
    })
  })
})
