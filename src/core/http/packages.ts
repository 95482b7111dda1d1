import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import type { Express, Request, Response } from 'express'
import { AppError } from '../base/errors.ts'
import { answersNotModified } from './not-modified.ts'

/**
 * GET /packages/...: clients and the command line of this version, for installs without a registry. Served from memory after
 * the first request, to any caller.
 */

/** The folder that `npm run build` writes. */
const PACKAGES = fileURLToPath(new URL('../../../packages/dist', import.meta.url))

type Entry = { path: string; immutable_path: string; sha256: string }

type File = { path: string; tag: string; content: Buffer }

const TYPES: Record<string, string> = {
  json: 'application/json; charset=utf-8',
  mjs: 'text/javascript; charset=utf-8',
  tgz: 'application/gzip',
  whl: 'application/zip',
}

/** Returns the files of the index by all of their paths; null if they are not built. */
function readPackages(directory: string): Map<string, File> | null {
  if (!existsSync(`${directory}/index.json`)) return null
  const index = readFileSync(`${directory}/index.json`)
  const files = new Map<string, File>()
  const { packages } = JSON.parse(index.toString('utf8')) as { packages: Entry[] }
  for (const { path, immutable_path, sha256 } of packages) {
    const content = readFileSync(`${directory}/${path.split('/').at(-1)}`)
    // A build that runs has replaced the file, and not yet the index.
    if (createHash('sha256').update(content).digest('hex') !== sha256) return null
    const file = { path, tag: `"${sha256}"`, content }
    files.set(path, file).set(immutable_path, file)
  }
  // Of all hashes, so that it changes with any of them.
  const tag = `"${packages.map(({ sha256 }) => sha256.slice(0, 16)).join('-')}"`
  return files.set('/packages/index.json', { path: '/packages/index.json', tag, content: index })
}

/** Mounts /packages. A deployment that did not build them answers 404 with the command that does. */
export function mountPackages(app: Express, directory = PACKAGES): void {
  let files: Map<string, File> | null = null
  app.get(/^\/packages(?:\/|$)/, (req: Request, res: Response) => {
    files ??= readPackages(directory)
    const file = files?.get(req.path)
    if (!file)
      throw new AppError('RESOURCE_NOT_FOUND', {
        message: files
          ? `No package ${req.path}; /packages/index.json lists them`
          : 'The packages are not built. Run npm run build.',
      })
    const { path, tag, content } = file
    res.setHeader('Cache-Control', req.path === path ? 'no-cache' : 'public, max-age=31536000, immutable')
    if (answersNotModified(req, res, tag)) return
    res.setHeader('Content-Type', TYPES[path.split('.').at(-1) as string])
    res.setHeader('Content-Length', content.length)
    res.end(content)
  })
}
