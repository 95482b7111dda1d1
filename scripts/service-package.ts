import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { PACKAGE_SCOPE } from './package-scope.ts'

/**
 * Packs the service for npm: `node scripts/service-package.ts FOLDER` writes an archive into the folder and prints its name. Node
 * runs no TypeScript below `node_modules`, so the sources are compiled, each to one file at the same place: files find each
 * other by the paths of the checkout. All packages have the versions of the lock file.
 */

const root = path.resolve(import.meta.dirname, '..')

/** Copied unchanged, like the other files next to the sources. */
const COPIED = [
  ...[
    'bin/launch',
    'bin/muster.mjs',
    'client/commands.json',
    'cli/dist',
    'cli/price-book.json',
    'console/dist',
    'docs',
  ],
  ...['packages/dist', 'sql', 'CHANGELOG.md', 'LICENSE', 'README.md'],
]

/** Parts of the build, which the package must have. */
const BUILT = ['cli/dist/main.js', 'console/dist/index.html', 'docs/dist/scalar.js', 'packages/dist/index.json']

/** Folders of sources. */
const SOURCES = ['src', 'jobs']

/** For development only. */
const OMITTED = ['src/local/double']

const readJson = (file: string) => JSON.parse(fs.readFileSync(path.join(root, file), 'utf8'))

/** Replaces the extension in the quoted paths of modules, in imports and of threads and processes. */
const withCompiledPaths = (source: string): string =>
  source.replaceAll(/(['"])((?:#|\.{1,2}\/)[^'"\n]*)\.ts\1/g, '$1$2.js$1')

function manifestOf() {
  const { version, description, license, type, imports, dependencies, optionalDependencies } = readJson('package.json')
  return {
    name: `${PACKAGE_SCOPE}/muster`,
    version,
    description,
    license,
    type,
    engines: { node: '>=24' },
    imports,
    bin: { muster: 'bin/muster.mjs' },
    files: [...new Set([...SOURCES, ...COPIED].map(each => each.split('/')[0])), 'npm-shrinkwrap.json'],
    dependencies,
    optionalDependencies,
  }
}

type LockedPackage = { dev?: boolean; link?: boolean }

/** Returns the lock file of the package: what `npm ci --omit=dev` installs in a checkout. */
export function productionShrinkwrap() {
  const { lockfileVersion, packages } = readJson('package-lock.json')
  const installed = Object.entries<LockedPackage>(packages).filter(
    ([at, { dev, link }]) => at.startsWith('node_modules/') && !dev && !link,
  )
  const { name, version, license, bin, engines, dependencies, optionalDependencies } = manifestOf()
  const own = { name, version, license, bin, engines, dependencies, optionalDependencies }
  return { name, version, lockfileVersion, requires: true, packages: { '': own, ...Object.fromEntries(installed) } }
}

/** Writes the files of the package into a folder. @throws Error where the checkout is not built */
function stage(folder: string): void {
  const missing = BUILT.filter(file => !fs.existsSync(path.join(root, file)))
  if (missing.length > 0) throw new Error(`${missing.join(', ')} missing: run npm run build`)
  const sources = path.join(folder, 'sources')
  const target = path.join(folder, 'package')
  for (const from of SOURCES)
    for (const file of fs.globSync(`${from}/**/*`, { cwd: root })) {
      if (OMITTED.some(each => file.startsWith(`${each}/`)) || fs.statSync(path.join(root, file)).isDirectory())
        continue
      const isCompiled = file.endsWith('.ts')
      const to = path.join(isCompiled ? sources : target, file)
      fs.mkdirSync(path.dirname(to), { recursive: true })
      const content = fs.readFileSync(path.join(root, file))
      fs.writeFileSync(to, isCompiled ? withCompiledPaths(content.toString('utf8')) : content)
    }
  const manifest = manifestOf()
  fs.writeFileSync(path.join(sources, 'package.json'), JSON.stringify(manifest))
  const compilerOptions = {
    ...{ noEmit: false, noCheck: true, allowImportingTsExtensions: false, declaration: true },
    ...{ rootDir: '.', outDir: target, types: ['node'] },
  }
  const configuration = { extends: path.join(root, 'tsconfig.json'), compilerOptions, include: SOURCES }
  fs.writeFileSync(path.join(sources, 'tsconfig.json'), JSON.stringify(configuration))
  execFileSync(process.execPath, [path.join(root, 'node_modules/typescript-native/bin/tsc'), '-p', sources], {
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  for (const each of COPIED) fs.cpSync(path.join(root, each), path.join(target, each), { recursive: true })
  const program = path.join(target, 'bin/muster.mjs')
  fs.writeFileSync(program, withCompiledPaths(fs.readFileSync(program, 'utf8')))
  const write = (name: string, value: object) =>
    fs.writeFileSync(path.join(target, name), `${JSON.stringify(value, null, 2)}\n`)
  write('package.json', manifest)
  write('npm-shrinkwrap.json', productionShrinkwrap())
}

/** Packs the service into a folder; returns the path of the archive. The same sources always give the same bytes. */
export function packService(folder: string): string {
  // Below the checkout, because the compiler finds the types of packages from there.
  const staged = fs.mkdtempSync(path.join(root, 'packages/.stage-'))
  try {
    stage(staged)
    const options = ['--ignore-scripts', '--json', '--pack-destination', path.resolve(folder)]
    const packed = execFileSync('npm', ['pack', ...options], { cwd: path.join(staged, 'package'), encoding: 'utf8' })
    return path.join(folder, JSON.parse(packed)[0].filename)
  } finally {
    fs.rmSync(staged, { recursive: true })
  }
}

if (process.argv[1] === import.meta.filename) console.log(packService(process.argv[2] ?? '.'))
