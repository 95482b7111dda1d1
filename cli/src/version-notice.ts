import fs from 'node:fs'
import { cacheFile, writePrivate } from './profiles.ts'
import { note, visible } from './terminal.ts'
import { isOtherMinor } from './versions.ts'

const DAY_MS = 24 * 3_600_000

/** Notes once a day for each profile that the service has another version than this program. */
export function noteOtherVersion(own: string, service: string, profile: string): void {
  if (!isOtherMinor(own, service)) return
  const file = cacheFile(profile, 'version-noted')
  const noted = fs.statSync(file, { throwIfNoEntry: false })
  if (noted && Date.now() - noted.mtimeMs < DAY_MS) return
  try {
    writePrivate(file, service)
  } catch {
    // Where nothing can be stored, each command would note it.
    return
  }
  note(`muster: this is version ${own}, the service has ${visible(service)}; muster profile sync reads its commands`)
}
