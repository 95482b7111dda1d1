import { strict as assert } from 'node:assert'
import { rawQuery } from '../../src/core/db.ts'
import { startApp } from '../support/app.ts'
import { startProcess } from '../support/processes.ts'
import { upload } from './file-support.ts'

describe('commits of uploaded bytes', () => {
  it('wait for the disk once, with the row that names them', async () => {
    const app = await startApp()
    const url = new URL(app.databaseUrl)
    // The server of the tests waits for no disk at all.
    url.searchParams.set('options', '-c synchronous_commit=on')
    const web = await startProcess('web', url.href, { FILE_BLOB_CHUNK_BYTES: '65536' })
    try {
      const run = (text: string) => app.services.pool.any(rawQuery(text))
      await run('create table commits (source text, waits text)')
      await run(`create function note() returns trigger language plpgsql as $$ begin
        insert into commits values (tg_table_name, current_setting('synchronous_commit')); return null; end $$`)
      for (const table of ['file_blob_chunks', 'files'])
        await run(`create trigger note after insert on ${table} execute function note()`)
      const { key } = await app.project()
      const made = await upload(web.url, key, { bytes: Buffer.alloc(100_000) })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.deepEqual(await run('select source, waits from commits order by source, waits'), [
        { source: 'file_blob_chunks', waits: 'off' },
        { source: 'file_blob_chunks', waits: 'off' },
        { source: 'files', waits: 'on' },
      ])
    } finally {
      await web.kill()
      await app.close()
    }
  })
})
