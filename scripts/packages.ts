import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { build } from 'esbuild'
import { pythonSources } from '../client/build/python.ts'
import { type Files, tarball, zip } from './archives.ts'
import { PACKAGE_SCOPE } from './package-scope.ts'

/**
 * Writes `packages/dist`, which the web process serves at /packages: the client and the command line as archives of npm,
 * the command line as one file, the Python client as a wheel, and an index. Archives and wheel contain all code that they
 * run, so that npm and pip need no registry for them.
 */

const root = path.resolve(import.meta.dirname, '..')
const target = path.join(root, 'packages/dist')
const read = (file: string): Buffer => fs.readFileSync(path.join(root, file))
const readJson = (file: string) => JSON.parse(read(file).toString('utf8'))

const { version, license } = readJson('package.json')

/** Returns the files below a folder that match, by their paths in the checkout. */
const filesBelow = (folder: string, pattern: RegExp): string[] =>
  fs
    .readdirSync(path.join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter(name => pattern.test(name))
    .map(name => path.posix.join(folder, name))

const manifest = (fields: object): string =>
  `${JSON.stringify({ version, license, type: 'module', ...fields }, null, 2)}\n`

/** Returns the files of an archive of npm, which are in the folder `package`. */
const inPackage = (files: Files): Files =>
  Object.fromEntries(Object.entries(files).map(([name, content]) => [`package/${name}`, content]))

function clientArchive(): Promise<Buffer> {
  const { description, engines, sideEffects, exports } = readJson('client/package.json')
  const files = filesBelow('client/dist', /\.(js|d\.ts)$/)
  return tarball(
    inPackage({
      ...Object.fromEntries(files.map(file => [file.slice('client/'.length), read(file)])),
      'README.md': read('client/README.md'),
      LICENSE: read('LICENSE'),
      'package.json': manifest({ name: `${PACKAGE_SCOPE}/client`, description, engines, sideEffects, exports }),
    }),
  )
}

/** Code of the command line in one file, and the packages in it. */
async function bundleProgram(): Promise<{ code: Buffer; packages: string[] }> {
  const { outputFiles, metafile } = await build({
    entryPoints: [path.join(root, 'cli/src/single-file.ts')],
    bundle: true,
    minifySyntax: true,
    minifyWhitespace: true,
    write: false,
    metafile: true,
    format: 'esm',
    platform: 'node',
    target: 'node24',
    absWorkingDir: root,
    preserveSymlinks: true,
    alias: {
      '@muster/client': path.join(root, 'client/src/index.ts'),
      '@muster/client/operations': path.join(root, 'client/src/generated/operations.ts'),
      yaml: path.join(root, 'node_modules/yaml/browser/index.js'),
    },
    plugins: [
      {
        name: 'bundled files',
        setup: ({ onLoad }) =>
          onLoad({ filter: /\/cli\/src\/bundled\.ts$/ }, () => ({
            contents: `export const readCommands = () => Buffer.from(${JSON.stringify(read('client/commands.json').toString('utf8'))})
export const readPrices = () => Buffer.from(${JSON.stringify(read('cli/price-book.json').toString('utf8'))})`,
          })),
      },
    ],
    logLevel: 'warning',
  })
  const names = Object.keys(metafile.inputs).map(file => /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1])
  return {
    code: Buffer.from(outputFiles[0].contents),
    packages: [...new Set(names.filter(name => name !== undefined))].sort(),
  }
}

/** Returns the licenses of packages. @throws Error if one has no license file */
const licensesOf = (packages: readonly string[]): string =>
  packages
    .map(name => {
      const folder = `node_modules/${name}`
      const file = fs.readdirSync(path.join(root, folder)).find(each => /^licen[cs]e(\.\w+)?$/i.test(each))
      if (!file) throw new Error(`${name} has no license file`)
      return `${name} ${readJson(`${folder}/package.json`).version}\n\n${read(`${folder}/${file}`).toString('utf8').trim()}\n`
    })
    .join('\n')

function programArchive(licenses: string): Promise<Buffer> {
  // The layout of the checkout, by which the files refer to each other.
  const files = ['bin/muster.mjs', 'client/commands.json', 'cli/price-book.json', ...filesBelow('cli/dist', /\.js$/)]
  return tarball(
    inPackage({
      ...Object.fromEntries(files.map(file => [file, read(file)])),
      LICENSE: read('LICENSE'),
      'THIRD-PARTY-LICENSES': licenses,
      'package.json': manifest({
        name: `${PACKAGE_SCOPE}/cli`,
        description: 'Command line of Muster',
        engines: { node: '>=20' },
        bin: { muster: 'bin/muster.mjs' },
      }),
    }),
    ['package/bin/muster.mjs'],
  )
}

/** Returns a wheel: the written and the generated modules, and its metadata with a checksum of each file. */
function wheel(name: string): Buffer {
  const folder = 'client/python/muster_client'
  const modules: Files = {
    ...Object.fromEntries(filesBelow(folder, /\.py$|^py\.typed$/).map(file => [path.basename(file), read(file)])),
    ...pythonSources(readJson('client/openapi.json')),
  }
  const information = `${name}-${version}.dist-info`
  const files: Files = {
    ...Object.fromEntries(Object.entries(modules).map(([file, content]) => [`muster_client/${file}`, content])),
    [`${information}/LICENSE`]: read('LICENSE'),
    [`${information}/METADATA`]: `Metadata-Version: 2.1
Name: ${name.replaceAll('_', '-')}
Version: ${version}
Summary: Typed client of Muster without dependencies, synchronous and for asyncio
License: ${license}
Requires-Python: >=3.9
`,
    [`${information}/WHEEL`]: 'Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: true\nTag: py3-none-any\n',
  }
  const record = Object.entries(files).map(([file, content]) => {
    const digest = createHash('sha256').update(content).digest('base64url')
    return `${file},sha256=${digest},${Buffer.byteLength(content)}\n`
  })
  return zip({ ...files, [`${information}/RECORD`]: `${record.join('')}${information}/RECORD,,\n` })
}

const { code, packages } = await bundleProgram()
const licenses = licensesOf(packages)
const header = `#!/usr/bin/env node\n/*! ${PACKAGE_SCOPE}/cli ${version}, ${license}. Contains:\n\n${licenses.replaceAll('*/', '* /')}*/\n`
const python = `${PACKAGE_SCOPE.slice(1)}_client`
const files: [name: string, file: string, content: Buffer][] = [
  [`${PACKAGE_SCOPE}/client`, 'client.tgz', await clientArchive()],
  [`${PACKAGE_SCOPE}/cli`, 'cli.tgz', await programArchive(licenses)],
  [`${PACKAGE_SCOPE}/cli`, 'muster.mjs', Buffer.concat([Buffer.from(header), code])],
  [python.replaceAll('_', '-'), `${python}-${version}-py3-none-any.whl`, wheel(python)],
]
const index = files.map(([name, file, content]) => {
  const sha256 = createHash('sha256').update(content).digest('hex')
  return {
    name,
    version,
    path: `/packages/${file}`,
    immutable_path: `/packages/${version}-${sha256.slice(0, 16)}/${file}`,
    size: content.length,
    sha256,
  }
})
fs.mkdirSync(target, { recursive: true })
for (const [, file, content] of files) fs.writeFileSync(path.join(target, file), content)
fs.writeFileSync(path.join(target, 'index.json'), `${JSON.stringify({ version, packages: index }, null, 2)}\n`)
