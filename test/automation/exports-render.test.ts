import assert from 'node:assert/strict'
import type { ExportFormat } from '#automation/playbooks/exports/model.ts'
import { RENDERERS } from '#automation/playbooks/exports/render.ts'
import type { CaseSnapshot } from '#automation/playbooks/exports/snapshot.ts'
import { openPage, startChromium } from '../support/chromium.ts'

const HOSTILE = [
  '<script>document.title="owned"</script>',
  '</title></style></pre></td><img src=x onerror=alert(1)>',
  '"><a href="javascript:alert(1)">x</a>',
  '# heading\n\n## other',
  '](javascript:alert(1)) ![x](http://evil.example/x.png)',
  '``` \n~~~ `code`',
  '| a | b |\n|---|---|',
  'abc\u202egpj.exe\u2066 \u0000 \ud800 end',
  '&lt;b&gt; &#60;script&#62;',
  '1. list\n- item\n> quote\n    code\n===\n---',
  'n'.repeat(20_000),
]
const all = HOSTILE.join(' ~ ')

/** Snapshot in which every text is hostile. */
const snapshot = (): CaseSnapshot => ({
  export_version: 1,
  generated_at: '2026-01-01T00:00:00.000Z',
  subject_type: 'case',
  case: {
    id: 'case_1',
    number: 7,
    title: all,
    status: 'open',
    description: all,
    fields: { [all]: all },
    tags: { [all]: all },
  },
  executions: [
    {
      id: 'pbk_exec_1',
      playbook_name: all,
      playbook_version: 1,
      status: 'completed',
      input: { a: all },
      steps: [
        { key: 'look', title: all, type: 'manual', status: 'completed', note: all, output: { said: all } },
        { key: 'pay', title: 'Pay', type: 'call_tool', status: 'pending' },
      ],
      definition: { steps: [{ key: 'look', instructions: all }, { key: 'pay' }] },
    },
  ],
  timeline: [
    {
      id: 'case_evt_1',
      kind: 'comment',
      principal_kind: 'user',
      principal_id: all,
      step_key: all,
      data: { body: all },
    },
  ],
  evidence: [
    {
      id: 'case_evd_1',
      name: all,
      kind: 'note',
      content: all,
      sha256: 'a'.repeat(64),
      playbook_execution_id: 'pbk_exec_1',
      step_key: 'look',
    },
    { id: 'case_evd_2', name: 'Bad link', kind: 'link', url: 'javascript:alert(1)', sha256: 'b'.repeat(64) },
    { id: 'case_evd_3', name: 'Link', kind: 'link', url: 'https://example.com/?a="b"', sha256: 'c'.repeat(64) },
  ],
  links: [{ type: 'task', target_id: '`x` | y' }],
  approvals: [],
  exceptions: [],
  tasks: [{ id: '`x` | y', title: all, status: all }],
  sessions: [],
  conversations: [],
  documents: [],
  files: [],
  generations: [],
  orchestration_runs: [],
  cases: [],
  omitted: [{ type: 'file', id: 'file_1', reason: 'not_found' }],
})

const rendered = (format: ExportFormat): string => [...RENDERERS[format].render(snapshot())].join('')

describe('export rendering', () => {
  it('renders an HTML page that loads, runs and sends nothing', () => {
    const html = rendered('html')
    const policy = /http-equiv="Content-Security-Policy" content="([^"]+)"/.exec(html)?.[1] ?? ''
    assert.match(policy, /^default-src 'none'; style-src 'sha256-[\w+/=]+'; base-uri 'none'; form-action 'none'$/)
    const tags = new Set(Array.from(html.matchAll(/<\/?([a-z][a-z0-9]*)/gi), ([, name]) => name.toLowerCase()))
    const known = 'html head meta title style body h1 h2 h3 table tr th td p pre blockquote ol li strong bdi code a'
    assert.deepEqual(
      [...tags].filter(tag => !known.split(' ').includes(tag)),
      [],
    )
    assert.doesNotMatch(html, /<[^>]*\s(?:on\w+|src|srcset|action|style)\s*=/i)
    assert.deepEqual(
      Array.from(html.matchAll(/href="([^"]*)"/g), ([, to]) => to),
      ['https://example.com/?a=%22b%22'],
    )
    assert.ok(html.includes('javascript:alert(1)'), 'shown as text')
    // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are the subject of the test
    assert.doesNotMatch(html, /[\u0000\u202e\u2066]/)
    assert.ok(html.isWellFormed() && html.includes('[U+202E]'))
    assert.equal(html.match(/<\/style>/g)?.length, 1)
    assert.equal(html.match(/<\/title>/g)?.length, 1)
  })

  it('renders record text in Markdown without headings, links, tables, code or HTML', () => {
    const lines = rendered('markdown').split('\n')
    const headings = lines.filter(line => /^\s*#/.test(line))
    assert.ok(headings[0].startsWith('# Case 7\\: '))
    assert.deepEqual(
      headings.slice(1).map(line => line.slice(0, 15)),
      [
        '## Execution of ',
        '## Timeline',
        '## Evidence',
        '### \\<script\\>d',
        '### Bad link',
        '### Link',
        '## Links',
        '## Omitted',
      ].map(line => line.slice(0, 15)),
    )
    let fence = ''
    for (const line of lines) {
      const mark = /^\s*(`{3,})/.exec(line)?.[1] ?? ''
      if (fence) {
        if (mark === fence) fence = ''
        continue
      }
      if (mark) {
        fence = mark
        continue
      }
      // Without escapes and code spans, only the markup of the renderer remains.
      const bare = line.replace(/\\./g, '').replace(/(`+)(?!`).*?[^`]\1(?!`)/g, '')
      assert.doesNotMatch(bare, /[<&[\]]|\w:\/\//, line.slice(0, 200))
      assert.doesNotMatch(bare, /^\s*(=+|-{3,}|~{3,})\s*$/)
      if (/^\s*\|/.test(line)) assert.ok([3, 5, 6, 4].includes(bare.split('|').length - 1), line.slice(0, 200))
    }
    assert.equal(fence, '')
    const markdown = lines.join('\n')
    assert.match(markdown, /^1\. \*\*/m)
    assert.match(markdown, /^2\. \*\*Pay\*\*$/m)
    assert.ok(markdown.includes('a'.repeat(64)) && markdown.isWellFormed())
    assert.doesNotMatch(markdown, /\u202e/)
  })

  it('renders the exact records as JSON', () => {
    const json = JSON.parse(rendered('json'))
    assert.equal(json.case.description.slice(0, 500), all.slice(0, 500))
    assert.equal(json.executions[0].definition.steps.length, 2)
  })

  it('runs and loads nothing in a browser', async function () {
    const chromium = await startChromium()
    if (!chromium) return this.skip()
    try {
      const { page, problems } = await openPage(chromium, ['null'])
      await page.setContent(rendered('html'))
      assert.match(await page.title(), /^Case 7: /)
      assert.equal(await page.locator('script, img').count(), 0)
      assert.deepEqual(problems, [])
    } finally {
      await chromium.close()
    }
  }).timeout(90_000)
})
