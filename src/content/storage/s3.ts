import type { Readable } from 'node:stream'
import type { CompletedPart, S3Client } from '@aws-sdk/client-s3'
import type { Config } from '#core/base/config.ts'
import { callHost } from '#core/net/hanging-calls.ts'
import type { ByteRange, StorageBackend } from './backend.ts'
import { reblock } from './reblock.ts'

/** Limit for a single PUT, and size of the parts of larger objects. */
const PART_BYTES = 8 * 1024 * 1024
const CONNECT_TIMEOUT_MS = 10_000

type Sdk = typeof import('@aws-sdk/client-s3')

/** Stores bytes in a bucket of Amazon S3 or a compatible service. Credentials come from the AWS environment. */
export function s3Backend(config: Config, bucket: string): StorageBackend {
  let opened: Promise<{ sdk: Sdk; client: S3Client }> | undefined
  // Loaded on demand: the package needs more memory than the rest of the application.
  const open = () => {
    opened ??= import('@aws-sdk/client-s3').then(sdk => {
      const client = new sdk.S3Client({
        ...(config.FILES_S3_REGION ? { region: config.FILES_S3_REGION } : {}),
        ...(config.FILES_S3_ENDPOINT ? { endpoint: config.FILES_S3_ENDPOINT } : {}),
        forcePathStyle: config.FILES_S3_FORCE_PATH_STYLE,
        // Compatible services may not support the newer checksums.
        requestChecksumCalculation: 'WHEN_REQUIRED',
        responseChecksumValidation: 'WHEN_REQUIRED',
        requestHandler: {
          connectionTimeout: CONNECT_TIMEOUT_MS,
          socketTimeout: config.FILES_S3_IDLE_TIMEOUT_MS,
        },
      })
      client.middlewareStack.add(next => args => callHost(`s3:${bucket}`, () => next(args)), { step: 'initialize' })
      return { sdk, client }
    })
    return opened
  }

  async function remove(Key: string): Promise<void> {
    const { sdk, client } = await open()
    await client.send(new sdk.DeleteObjectCommand({ Bucket: bucket, Key }))
  }

  async function read(Key: string, range?: ByteRange): Promise<Readable | null> {
    const { sdk, client } = await open()
    try {
      const { Body } = await client.send(
        new sdk.GetObjectCommand({
          Bucket: bucket,
          Key,
          ...(range ? { Range: `bytes=${range.start}-${range.end}` } : {}),
        }),
      )
      return Body as Readable
    } catch (error) {
      if (error instanceof sdk.NoSuchKey) return null
      throw error
    }
  }
  return {
    newLocation: ({ projectId, fileId }) => `${config.FILES_S3_KEY_PREFIX}${projectId}/${fileId}`,
    async write(source, Key) {
      const { sdk, client } = await open()
      let upload: { Bucket: string; Key: string; UploadId: string | undefined } | null = null
      const parts: CompletedPart[] = []
      const sendPart = async (Body: Buffer) => {
        if (!upload) {
          const { UploadId } = await client.send(new sdk.CreateMultipartUploadCommand({ Bucket: bucket, Key }))
          upload = { Bucket: bucket, Key, UploadId }
        }
        const PartNumber = parts.length + 1
        const { ETag } = await client.send(new sdk.UploadPartCommand({ ...upload, PartNumber, Body }))
        parts.push({ ETag, PartNumber })
      }
      try {
        // Delayed by one block: an object of a single block is one PUT.
        let last: Buffer | null = null
        for await (const block of reblock(source, PART_BYTES, 2)) {
          if (last) await sendPart(last)
          last = block
        }
        if (parts.length === 0 || !last) {
          await client.send(new sdk.PutObjectCommand({ Bucket: bucket, Key, Body: last ?? Buffer.alloc(0) }))
          return
        }
        await sendPart(last)
        await client.send(new sdk.CompleteMultipartUploadCommand({ ...upload!, MultipartUpload: { Parts: parts } }))
      } catch (error) {
        // If the abort fails, the sweep of staged bytes repeats it an hour later.
        if (upload) await client.send(new sdk.AbortMultipartUploadCommand(upload)).catch(() => {})
        throw error
      }
    },
    commit: async () => {},
    read,
    readStaged: ({ location }) => read(location),
    delete: remove,
    async abandon(Key) {
      const { sdk, client } = await open()
      const { Uploads = [] } = await client.send(new sdk.ListMultipartUploadsCommand({ Bucket: bucket, Prefix: Key }))
      for (const { UploadId, Key: key } of Uploads)
        if (key === Key) await client.send(new sdk.AbortMultipartUploadCommand({ Bucket: bucket, Key, UploadId }))
      await remove(Key)
    },
  }
}
