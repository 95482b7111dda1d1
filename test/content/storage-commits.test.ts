import { strict as assert } from 'node:assert'
import { rawQuery } from '#core/db/sql.ts'
import { AT_HOME, eventually, startApp } from '../support/app.ts'
import { runWeb } from '../support/hosts.ts'
import { handmade, sendRaw, upload } from './file-support.ts'

describe('commits of uploaded bytes', () => {
  it('wait for the disk once, with the row that names them', async () => {
    const app = await startApp()
    const url = new URL(app.databaseUrl)
    // The server of the tests waits for no disk at all.
    url.searchParams.set('options', '-c synchronous_commit=on')
    const web = await runWeb(url.href, { FILE_BLOB_CHUNK_BYTES: '65536' })
    try {
      const run = (text: string) => app.home.pool.any(rawQuery(text))
      await run('create table commits (source text, waits text)')
      await run(`create function note() returns trigger language plpgsql as $$ begin
        insert into commits values (tg_table_name, current_setting('synchronous_commit')); return null; end $$`)
      for (const table of ['file_blob_chunks', 'files'])
        await run(`create trigger note after insert on ${table} execute function note()`)
      const { key } = await app.project(undefined, AT_HOME)
      const made = await upload(web.url, key, { bytes: Buffer.alloc(100_000) })
      assert.equal(made.status, 201, JSON.stringify(made.body))
      assert.deepEqual(await run('select source, waits from commits order by source, waits'), [
        { source: 'file_blob_chunks', waits: 'off' },
        { source: 'file_blob_chunks', waits: 'off' },
        { source: 'files', waits: 'on' },
      ])
    } finally {
      await web.stop()
      await app.close()
    }
  })

  // What a server forgets that crashes before its log is on the disk: the last chunk, or all there was.
  for (const [what, lost] of [
    ['a chunk', 'delete from file_blob_chunks where seq = 1'],
    ['the blob', 'with gone as (delete from file_blob_chunks) delete from file_blobs'],
  ])
    it(`refuse bytes of which ${what} was lost with the server while the rest arrived`, async () => {
      const app = await startApp({ env: { FILE_BLOB_CHUNK_BYTES: '1024' } })
      try {
        const run = (text: string) => app.pool.any(rawQuery(text))
        const { key } = await app.project()
        const { head, tail, type } = handmade('cut')
        async function* pieces() {
          yield head
          yield Buffer.alloc(2048 + 100)
          await eventually(async () => (await run('select 1 from file_blob_chunks')).length === 2)
          await run(lost)
          yield Buffer.alloc(4096)
          // Before the rest is there: sweeps find the blobs of a process that is lost now.
          if (what === 'the blob')
            await eventually(() => app.statements.some(text => text.includes(`id = $1 and state = 'staging'`)))
          yield tail
        }
        const answer = await sendRaw(app.url, {
          path: '/files/upload',
          token: key.token,
          headers: { 'content-type': type },
          pieces: pieces(),
        })
        assert('status' in answer)
        assert.equal(answer.status, 500)
        assert.deepEqual(await run('select id from files'), [])
        assert.deepEqual(await run('select blob_id from file_blob_chunks'), [])
      } finally {
        await app.close()
      }
    })
})
