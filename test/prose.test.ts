import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { forbiddenWords, subjectFindings, subjectProblem } from './support/prose.ts'

describe('the prose check', () => {
  let directory: string
  before(() => {
    directory = fs.mkdtempSync(path.join(os.tmpdir(), 'prose-'))
  })
  after(() => fs.rmSync(directory, { recursive: true }))

  const wordsOf = (name: string, text: string): string[] => {
    const file = path.join(directory, name)
    fs.mkdirSync(path.dirname(file), { recursive: true })
    fs.writeFileSync(file, text)
    return forbiddenWords([name], directory).map(({ word }) => word)
  }

  it('reads titles, messages and comments of tests, and none of their data', () => {
    const test = `
      // A comment with a door.
      describe('files behind', () => {
        it(\`go with \${1} project\`, async () => {
          assert.equal(reply.text, 'what is data', 'the message asks')
          assert.ok(done, \`nobody \${1} came\`)
          await eventually(() => true, { what: 'a reply at once' })
          throw new Error('it looks wrong')
        })
      })`
    assert.deepEqual(wordsOf('test/a.test.ts', test).sort(), [
      'asks',
      'at once',
      'behind',
      'door',
      'go with',
      'looks',
      'nobody',
    ])
  })

  it('reads texts and comments of pages of the console', () => {
    const page = `
      /** What is shown. */
      export const Page = () => <p title="told by hand">Please wait</p>`
    assert.deepEqual(wordsOf('console/page.tsx', page), ['told', 'by hand', 'Please', 'What is'])
  })

  it('accepts subjects of commits that begin with an area and a verb, and are short', () => {
    assert.equal(subjectProblem('search: keep codes of hot projects in memory'), null)
    assert.equal(subjectProblem('openai mount, ui: refuse unknown fields'), null)
    assert.match(subjectProblem('keep codes in memory') ?? '', /begin with the area/)
    assert.match(subjectProblem('search: codes are kept in memory') ?? '', /imperative, not "codes"/)
    assert.match(subjectProblem(`search: keep ${'codes '.repeat(12)}`) ?? '', /72 characters, not 85/)
  })

  it('checks commits since the rule, as far as a clone has them, and none outside a repository', function () {
    if (spawnSync('git', ['--version']).status !== 0) return this.skip()
    const outside = path.join(directory, 'outside')
    fs.mkdirSync(outside)
    assert.deepEqual(subjectFindings(outside, '2026-06-01T00:00:00Z'), [])
    const repository = path.join(directory, 'repository')
    fs.mkdirSync(repository)
    const git = (args: string[], date = '2026-07-01T00:00:00Z'): string =>
      execFileSync('git', ['-c', 'user.name=a', '-c', 'user.email=a@example.com', ...args], {
        cwd: repository,
        env: { ...process.env, GIT_AUTHOR_DATE: date, GIT_COMMITTER_DATE: date },
        encoding: 'utf8',
      })
    git(['init', '-q'])
    git(['commit', '-q', '--allow-empty', '-m', 'before the rule'], '2026-05-01T00:00:00Z')
    git(['commit', '-q', '--allow-empty', '-m', 'search: keep codes'])
    git(['commit', '-q', '--allow-empty', '-m', 'search: keep what is new'])
    git(['commit', '-q', '--allow-empty', '-m', 'no area'])
    const found = subjectFindings(repository, '2026-06-01T00:00:00Z')
    assert.equal(found.length, 2, found.join('\n'))
    assert.match(found[0]!, /begin with the area/)
    assert.match(found[1]!, /"what is"/)
  })
})
