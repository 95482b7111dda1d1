import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { compareReleases } from '#core/base/release.ts'
import { newMigrations, readFragments, withVersion } from './collect-changes.ts'
import type { Interface } from './interface.ts'
import { packService, productionShrinkwrap } from './service-package.ts'

/**
 * Makes a release of this checkout in a folder: `npm run release -- 0.2.0 --image registry.example/muster`. It runs the tests, refuses
 * differences of the interface that the notes do not mention, and writes packages, bill of materials, notes and checksums; then it
 * builds the image, signs and publishes. Without `--image` the image is an archive in the folder, and is published nowhere. `--dry-run`
 * does nothing that leaves this machine, reads the notes from `changes/`, and prints the commands of a release with their
 * requirements; with it the version is by default the next one without a section in the changelog, and `--skip-tests` is allowed. Packages and notes have the same
 * bytes for the same sources.
 */

const root = path.resolve(import.meta.dirname, '..')
const RELEASES = 'test/releases'

const read = (file: string): string => fs.readFileSync(path.join(root, file), 'utf8')
const packageVersion = (): string => JSON.parse(read('package.json')).version

/** A step that needs something which not every machine has. */
type Step = { name: string; needs: string; has(): boolean; commands(): string[][] }

const succeeds = (program: string, ...args: string[]): boolean =>
  spawnSync(program, args, { timeout: 10_000 }).status === 0

const hasDocker = () => succeeds('docker', 'buildx', 'version') && succeeds('docker', 'info')
const hasCosign = () => succeeds('cosign', 'version')

/** What a release is made from, and where its image is published, if anywhere. */
type Plan = { version: string; out: string; image: string | undefined }

/** Builds the image into an archive in the folder, or into a registry, and writes its digest to `image.json`. */
const imageStep = ({ version, out, image }: Plan): Step => ({
  name: image
    ? `image for amd64 and arm64, published as ${image}:${version}`
    : 'image for amd64 and arm64, in an archive',
  needs: `docker with buildx and a running engine${image ? ', signed in at the registry' : ''}`,
  has: hasDocker,
  commands: () => [
    [
      ...['docker', 'buildx', 'build', '--platform', 'linux/amd64,linux/arm64', '--provenance=true', '--sbom=true'],
      ...['--tag', `${image ?? 'muster'}:${version}`, '--metadata-file', path.join(out, 'image.json')],
      ...(image ? ['--push'] : ['--output', `type=oci,dest=${path.join(out, `muster-${version}.oci.tar`)}`]),
      '.',
    ],
  ],
})

/** Steps after the checksums. */
const laterSteps = ({ out, image }: Plan, archives: string[]): Step[] => [
  {
    name: 'signature of the checksums',
    needs: 'cosign',
    has: hasCosign,
    commands: () => [
      ['cosign', 'sign-blob', '--yes', '--bundle', path.join(out, 'SHA256SUMS.bundle'), path.join(out, 'SHA256SUMS')],
    ],
  },
  ...(image
    ? [
        {
          name: 'signature of the image',
          needs: 'cosign, and docker signed in at the registry',
          has: () => hasCosign() && hasDocker(),
          commands: () => [['cosign', 'sign', '--yes', `${image}@${digestIn(out)}`]],
        },
      ]
    : []),
  {
    name: 'packages in the registry, with provenance',
    needs: 'a workflow whose identity npm accepts (NPM_ID_TOKEN, or ACTIONS_ID_TOKEN_REQUEST_URL of its runner)',
    has: () => Boolean(process.env.NPM_ID_TOKEN || process.env.ACTIONS_ID_TOKEN_REQUEST_URL),
    commands: () => archives.map(file => ['npm', 'publish', file, '--provenance', '--access', 'public']),
  },
]

/** Returns the digest of the image that was built; a placeholder before. */
function digestIn(out: string): string {
  const file = path.join(out, 'image.json')
  return fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, 'utf8'))['containerimage.digest'] : 'DIGEST'
}

/** Returns the section of a version in the changelog; in a dry run the fragments belong to it. */
function notesOf(version: string, isDryRun: boolean): string {
  const changelog = read('CHANGELOG.md')
  const fragments = readFragments(path.join(root, 'changes'))
  const isCollected = changelog.includes(`\n## ${version} `)
  if (!isDryRun && (!isCollected || fragments.length > 0))
    throw new Error(
      `CHANGELOG.md has no complete section ${version}: run npm run changes -- ${version} and the date first`,
    )
  const text = isCollected
    ? changelog
    : withVersion(changelog, { version, date: 'dry run', fragments, migrations: newMigrations(root) })
  return `## ${text.split(/^## /m).find(section => section.startsWith(`${version} `)) ?? ''}`.trim()
}

/** Returns the version of `package.json`, or the next minor one if the changelog has it. */
function nextVersion(): string {
  const version = packageVersion()
  const [major, minor] = version.split('.').map(Number)
  return read('CHANGELOG.md').includes(`\n## ${version} `) ? `${major}.${minor + 1}.0` : version
}

/** Returns the interface of the last recorded release before a version; null for the first one. */
function previousInterface(version: string): { version: string; recorded: Interface } | null {
  const versions = fs
    .readdirSync(path.join(root, RELEASES))
    .flatMap(file => /^(\d+\.\d+\.\d+)\.interface\.json$/.exec(file)?.[1] ?? [])
    .filter(each => compareReleases(each, version) < 0)
    .sort(compareReleases)
  const last = versions.at(-1)
  return last === undefined ? null : { version: last, recorded: JSON.parse(read(`${RELEASES}/${last}.interface.json`)) }
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
function writeFiles(out: string, notes: string, interfaceText: string): string[] {
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
  write('interface.json', interfaceText)
  return archives
}

/** Writes the checksums of all files of a folder. */
function writeChecksums(out: string): void {
  const sumOf = (name: string) =>
    createHash('sha256')
      .update(fs.readFileSync(path.join(out, name)))
      .digest('hex')
  const names = fs.readdirSync(out).sort()
  fs.writeFileSync(path.join(out, 'SHA256SUMS'), names.map(name => `${sumOf(name)}  ${name}\n`).join(''))
}

/** @throws Error that names what a release needs and this machine, or the checkout, lacks */
function requireReleasable(plan: Plan): void {
  if (packageVersion() !== plan.version) throw new Error(`package.json has version ${packageVersion()}`)
  if (execFileSync('git', ['status', '--porcelain'], { cwd: root, encoding: 'utf8' }) !== '')
    throw new Error('the checkout has changes that are not committed')
  const missing = [imageStep(plan), ...laterSteps(plan, [])].filter(step => !step.has())
  if (missing.length > 0) throw new Error(missing.map(({ name, needs }) => `${name}: needs ${needs}`).join('\n'))
}

const run = (program: string, ...args: string[]) => execFileSync(program, args, { cwd: root, stdio: 'inherit' })

/** Runs the commands of a step, or prints them. */
function perform({ name, needs, commands }: Step, isDryRun: boolean): void {
  if (isDryRun) console.log(`not done, ${name}: needs ${needs}`)
  for (const command of commands())
    if (isDryRun) console.log(`  ${command.join(' ')}`)
    else run(command[0], ...command.slice(1))
}

/** @throws Error with the first reason why there is no release */
async function release(plan: Plan, isDryRun: boolean, skipsTests: boolean): Promise<void> {
  const { version, out } = plan
  if (!/^\d+\.\d+\.\d+$/.test(version)) throw new Error(`${version || 'nothing'} is not a version: 0.2.0`)
  if (skipsTests && !isDryRun) throw new Error('--skip-tests is for --dry-run')
  if (fs.existsSync(out) && fs.readdirSync(out).length > 0) throw new Error(`${out} is not empty`)
  if (!isDryRun) requireReleasable(plan)
  else if (packageVersion() !== version) console.log(`packages have version ${packageVersion()} of package.json`)
  run(process.execPath, 'scripts/build.ts')
  if (!skipsTests) run('npm', 'test')
  const notes = notesOf(version, isDryRun)
  const previous = previousInterface(version)
  // All modules are loaded for it, which a refusal need not wait for.
  const { currentInterface, interfaceLines, interfaceText, overdue, unmentioned } = await import('./interface.ts')
  const current = currentInterface()
  const lines = interfaceLines(current)
  const late = overdue(lines, version)
  if (late.length > 0) throw new Error(`these should have been removed:\n${late.join('\n')}`)
  const silent = previous ? unmentioned(interfaceLines(previous.recorded), lines, notes) : []
  const refusal = `the notes do not mention these differences from ${previous?.version}:\n${silent.join('\n')}`
  if (silent.length > 0 && !isDryRun) throw new Error(refusal)
  fs.mkdirSync(out, { recursive: true })
  const archives = writeFiles(out, notes, interfaceText(current))
  perform(imageStep(plan), isDryRun)
  writeChecksums(out)
  for (const name of fs.readdirSync(out).sort()) console.log(name)
  for (const step of laterSteps(plan, archives)) perform(step, isDryRun)
  if (silent.length > 0) throw new Error(refusal)
}

if (process.argv[1] === import.meta.filename) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      'dry-run': { type: 'boolean', default: false },
      'skip-tests': { type: 'boolean', default: false },
      image: { type: 'string' },
      out: { type: 'string', default: 'release' },
    },
  })
  const { 'dry-run': isDryRun, image } = values
  const version = positionals[0] ?? (isDryRun ? nextVersion() : '')
  try {
    await release({ version, out: path.resolve(values.out), image }, isDryRun, values['skip-tests'])
  } catch (error) {
    console.error(`release: ${(error as Error).message}`)
    process.exitCode = 1
  }
}
