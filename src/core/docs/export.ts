import fs from 'node:fs'
import path from 'node:path'
import type { Links } from './page.ts'
import type { Site } from './site.ts'

/** The documentation as files for any web server. */

const fileOf = (page: string): string => (/\.\w+$/.test(page) ? page : `${page || 'index'}.html`)

/** Addresses of exported files, relative to the file of the page. */
export const relativeLinks: Links = (to, from) =>
  path.posix.relative(path.posix.dirname(`/${fileOf(from)}`), `/${fileOf(to)}`)

/** Writes all files of a site with relative links into a directory, and returns their number. */
export function exportSite(site: Site, directory: string): number {
  const paths = site.paths()
  for (const each of paths) {
    const target = path.join(directory, fileOf(each))
    fs.mkdirSync(path.dirname(target), { recursive: true })
    fs.writeFileSync(target, site.file(each)?.text ?? '')
  }
  return paths.length
}
