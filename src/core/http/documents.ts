import type { Operation } from '../api/operation.ts'
import type { Config } from '../base/config.ts'
import { release } from '../base/release.ts'
import type { Site } from '../docs/site.ts'
import { openApiDocument } from '../openapi/openapi.ts'
import { basePath } from './base-path.ts'

/** Documents of the deployment, generated once in a process. */

const descriptions = new WeakMap<Config, string>()
const sites = new WeakMap<Config, Promise<Site>>()

/** Returns the OpenAPI document as JSON. Generating it takes 0.2 s, parsing this text a tenth of that. */
export function descriptionText(config: Config, operations: readonly Operation[]): string {
  let text = descriptions.get(config)
  if (text === undefined) {
    text = JSON.stringify(openApiDocument(operations, config, release))
    descriptions.set(config, text)
  }
  return text
}

/** Returns the documentation at /docs. */
export function deployedSite(config: Config, operations: readonly Operation[]): Promise<Site> {
  let site = sites.get(config)
  if (!site) {
    site = openSite(config, operations)
    sites.set(config, site)
  }
  return site
}

async function openSite(config: Config, operations: readonly Operation[]): Promise<Site> {
  // Rarely requested: imported on demand to save memory.
  const { Site } = await import('../docs/site.ts')
  const describe = () => JSON.parse(JSON.stringify(openApiDocument(operations, config, release, true)))
  const links = (path: string) => `${basePath(config)}/docs${path && `/${path}`}`
  return new Site(config, operations, describe, links)
}
