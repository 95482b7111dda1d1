import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { readFragments, withVersion } from './collect-changes.ts'
import { packService, productionShrinkwrap } from './service-package.ts'

/**
 * Makes a release of this checkout in a folder: `npm run release -- 0.2.0`. It runs the tests, refuses differences of the interface
 * that the notes do not mention, and writes packages, bill of materials, notes and checksums; then it builds the image, signs and
 * publishes. `--dry-run` does nothing that leaves this machine, reads the notes from `changes/`, and says what a release
 * needs; with it `--skip-tests` is allowed. The same sources always give the same bytes.
 */

const root = path.resolve(import.meta.dirname, '..')
const RELEASES = 'test/releases'

const read = (file: string): string => fs.readFileSync(path.join(root, file), 'utf8')
const packageVersion = (): string => JSON.parse(read('package.json')).version

/** A step that needs something which not every machine has. */
type Step = { name: string; needs: string; has(): boolean; commands: string[][] }

const succeeds = (program: string, ...args: string[]): boolean =>
  spawnSync(program, args, { timeout: 10_000 }).status === 0

const steps = (version: string, out: string, archives: string[]): Step[] => [
  {
    name: 'image for amd64 and arm64',
    needs: 'docker with buildx and a running engine',
    has: () => succeeds('docker', 'buildx', 'version') && succeeds('docker', 'info'),
    commands: [
      [
        ...['docker', 'buildx', 'build', '--platform', 'linux/amd64,linux/arm64', '--provenance=true', '--sbom=true'],
        ...[
          '--tag',
          `muster:${version}`,
          '--output',
          `type=oci,dest=${path.join(out, `muster-${version}.oci.tar`)}`,
          '.',
        ],
      ],
    ],
  },
  {
    name: 'signature of the checksums',
    needs: 'cosign',
    has: () => succeeds('cosign', 'version'),
    commands: [
      ['cosign', 'sign-blob', '--yes', '--bundle', path.join(out, 'SHA256SUMS.bundle'), path.join(out, 'SHA256SUMS')],
    ],
  },
  {
    name: 'packages in the registry, with provenance',
    needs: 'a workflow whose identity npm accepts (NPM_ID_TOKEN, or ACTIONS_ID_TOKEN_REQUEST_URL of its runner)',
    has: () => Boolean(process.env.NPM_ID_TOKEN || process.env.ACTIONS_ID_TOKEN_REQUEST_URL),
    commands: archives.map(file => ['npm', 'publish', file, '--provenance', '--access', 'public']),
  },
]

/** Returns the section of a version in the changelog; in a dry run the fragments belong to it. */
function notesOf(version: string, isDryRun: boolean): string {
  const changelog = read('CHANGELOG.md')
  const fragments = readFragments(path.join(root, 'changes'))
  const isCollected = changelog.includes(`\n## ${version} `)
  if (!isDryRun && (!isCollected || fragments.length > 0))
    throw new Error(
      `CHANGELOG.md has no complete section ${version}: run npm run changes -- ${version} and the date first`,
    )
  const text = isCollected ? changelog : withVersion(changelog, { version, date: 'dry run', fragments, breaking: [] })
  return `## ${text.split(/^## /m).find(section => section.startsWith(`${version} `)) ?? ''}`.trim()
}

/** Returns the interface of the last recorded release before a version. */
function previousInterface(version: string): { version: string; lines: string[] } {
  const versions = fs
    .readdirSync(path.join(root, RELEASES))
    .flatMap(file => /^(\d+\.\d+\.\d+)\.interface\.txt$/.exec(file)?.[1] ?? [])
    .filter(each => each.localeCompare(version, 'en', { numeric: true }) < 0)
    .sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))
  const last = versions.at(-1)
  if (!last) throw new Error(`${RELEASES} has no interface of a release before ${version}`)
  return { version: last, lines: read(`${RELEASES}/${last}.interface.txt`).trim().split('\n') }
}

/** Returns the bill of materials of the service in CycloneDX: production packages alone, without the time and a random number. */
export function billOfMaterials(folder: string): string {
  const work = fs.mkdtempSync(path.join(folder, '.sbom-'))
  try {
    const lock = productionShrinkwrap()
    const { overrides } = JSON.parse(read('package.json'))
    fs.writeFileSync(path.join(work, 'package.json'), JSON.stringify({ ...lock.packages[''], overrides }))
    fs.writeFileSync(path.join(work, 'package-lock.json'), JSON.stringify(lock))
    const args = ['sbom', '--sbom-format', 'cyclonedx', '--omit', 'dev', '--package-lock-only']
    const {
      serialNumber: _,
      metadata,
      ...bill
    } = JSON.parse(execFileSync('npm', args, { cwd: work, encoding: 'utf8' }))
    const { timestamp: __, component, ...more } = metadata
    const named = { ...more, component: { ...component, name: lock.name } }
    return `${JSON.stringify({ ...bill, metadata: named }, null, 2)}\n`
  } finally {
    fs.rmSync(work, { recursive: true })
  }
}

/** Writes everything that needs this machine alone. Returns the archives for npm. */
function writeFiles(out: string, notes: string, lines: readonly string[]): string[] {
  const write = (name: string, text: string) => fs.writeFileSync(path.join(out, name), text)
  const archives = [packService(out)]
  const { packages } = JSON.parse(read('packages/dist/index.json'))
  for (const { path: at } of packages) {
    const file = path.join(out, path.basename(at))
    fs.copyFileSync(path.join(root, 'packages/dist', path.basename(at)), file)
    if (file.endsWith('.tgz')) archives.push(file)
  }
  write('sbom.cdx.json', billOfMaterials(out))
  write('NOTES.md', `${notes}\n`)
  // Kept in test/releases, for the differences of the next release.
  write('interface.txt', `${lines.join('\n')}\n`)
  const sums = fs
    .readdirSync(out)
    .filter(name => name !== 'SHA256SUMS')
    .sort()
    .map(
      name =>
        `${createHash('sha256')
          .update(fs.readFileSync(path.join(out, name)))
          .digest('hex')}  ${name}\n`,
    )
  write('SHA256SUMS', sums.join(''))
  return archives
}

/** @throws Error with the first reason why there is no release */
async function release(
  version: string | undefined,
  isDryRun: boolean,
  skipsTests: boolean,
  out: string,
): Promise<void> {
  if (!version || !/^\d+\.\d+\.\d+$/.test(version)) throw new Error(`${version ?? 'nothing'} is not a version: 0.2.0`)
  if (skipsTests && !isDryRun) throw new Error('--skip-tests is for --dry-run')
  if (fs.existsSync(out) && fs.readdirSync(out).length > 0) throw new Error(`${out} is not empty`)
  const missing = steps(version, out, []).filter(step => !step.has())
  if (!isDryRun) {
    if (packageVersion() !== version) throw new Error(`package.json has version ${packageVersion()}`)
    if (execFileSync('git', ['status', '--porcelain'], { cwd: root, encoding: 'utf8' }) !== '')
      throw new Error('the checkout has changes that are not committed')
    if (missing.length > 0) throw new Error(missing.map(({ name, needs }) => `${name}: needs ${needs}`).join('\n'))
  } else if (packageVersion() !== version) console.log(`packages have version ${packageVersion()} of package.json`)
  const run = (program: string, ...args: string[]) => execFileSync(program, args, { cwd: root, stdio: 'inherit' })
  run(process.execPath, 'scripts/build.ts')
  if (!skipsTests) run('npm', 'test')
  const notes = notesOf(version, isDryRun)
  const previous = previousInterface(version)
  // All modules are loaded for it, which a refusal need not wait for.
  const { currentInterface, unmentioned } = await import('./interface.ts')
  const lines = currentInterface()
  const silent = unmentioned(previous.lines, lines, notes)
  const refusal = `the notes do not mention these differences from ${previous.version}:\n${silent.join('\n')}`
  if (silent.length > 0 && !isDryRun) throw new Error(refusal)
  fs.mkdirSync(out, { recursive: true })
  const archives = writeFiles(out, notes, lines)
  for (const name of fs.readdirSync(out).sort()) console.log(name)
  for (const step of steps(version, out, archives))
    if (isDryRun) console.log(`not done, ${step.name}: needs ${step.needs}`)
    else for (const [program, ...args] of step.commands) run(program, ...args)
  if (silent.length > 0) throw new Error(refusal)
}

if (process.argv[1] === import.meta.filename) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      'dry-run': { type: 'boolean', default: false },
      'skip-tests': { type: 'boolean', default: false },
      out: { type: 'string', default: 'release' },
    },
  })
  try {
    await release(positionals[0], values['dry-run'], values['skip-tests'], path.resolve(values.out))
  } catch (error) {
    console.error(`release: ${(error as Error).message}`)
    process.exitCode = 1
  }
}
