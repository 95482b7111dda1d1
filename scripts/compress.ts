import fs from 'node:fs'
import path from 'node:path'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'

/** Writes a `.br` and a `.gz` for each asset of the console, which the web process serves as they are. */

const assets = path.resolve(import.meta.dirname, '../console/dist/assets')
for (const name of fs.readdirSync(assets).filter(each => /\.(js|css|svg)$/.test(each))) {
  const file = path.join(assets, name)
  const text = fs.readFileSync(file)
  fs.writeFileSync(
    `${file}.br`,
    brotliCompressSync(text, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: text.length } }),
  )
  fs.writeFileSync(`${file}.gz`, gzipSync(text, { level: constants.Z_BEST_COMPRESSION }))
}
