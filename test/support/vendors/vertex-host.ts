/**
 * Loaded into a process before its program: connections to Vertex AI, whose host is not configurable, reach the simulator
 * at VERTEX_SIMULATOR_URL.
 */
import net from 'node:net'
import tls from 'node:tls'

const connect = tls.connect
const simulator = process.env.VERTEX_SIMULATOR_URL

Object.assign(tls, {
  connect(options: tls.ConnectionOptions, ...others: [() => void]) {
    const isVertex = /^([a-z0-9-]+-)?aiplatform\.googleapis\.com$/.test(options.host ?? '')
    if (!simulator || !isVertex) return connect(options, ...others)
    const { hostname, port } = new URL(simulator)
    const socket = net.connect({ host: hostname, port: Number(port) })
    return socket.once('connect', () => socket.emit('secureConnect'))
  },
})
