// Health check of the image: exits 0 if the web process or the worker of this container answers.
const { PORT = '5047', WORKER_HEALTH_PORT = '5048' } = process.env
const answers = await Promise.all(
  [PORT, WORKER_HEALTH_PORT].map(port =>
    fetch(`http://127.0.0.1:${port}/healthz`).then(
      ({ ok }) => ok,
      () => false,
    ),
  ),
)
process.exit(answers.includes(true) ? 0 : 1)
